// Strings that are equal to their end.
#include "strcmp.h"
