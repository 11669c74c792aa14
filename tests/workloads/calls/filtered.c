/* Puts itself under a seccomp filter and runs a program: filtered RULES PROGRAM ARGUMENT... */
#include "filters.h"

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    load_rules(words[1]);
    execvp(words[2], words + 2);
    fail(words[2], errno);
}
