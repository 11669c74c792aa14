// Strings that differ in their first quarter.
#include "strcmp.h"
