// A library whose constructor tells that it has run.
#include <unistd.h>
__attribute__((constructor)) static void constructed(void) { if (write(1, "constructor\n", 12) != 12) _exit(1); }
int answer(void) { return 42; }
