/* Targets that make system calls in scenes, told by name.
 *
 * Says "ready"; then, for each line with a scene's name it plays the scene and answers "done NAME", or "failed NAME LINE"
 * with the line of the first check that did not hold. Exit code 7 at end of file. Nothing is buffered. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EXIT_CODE = 7 };

/* Plays; gives 0, or the line of what went wrong. */
struct scene {
    const char *name;
    int (*play)(void);
};

#define CHECK(holds)         \
    do {                     \
        if (!(holds))        \
            return __LINE__; \
    } while (0)

static void say(const char *text)
{
    if (write(1, text, strlen(text)) < 0)
        _exit(1);
}

static int serve(const struct scene *scenes)
{
    char line[200], answer[300];
    ssize_t length;
    while ((length = read(0, line, sizeof line - 1)) > 0) {
        line[strcspn(line, "\n")] = 0;
        line[length] = 0;
        const struct scene *scene = scenes;
        while (scene->name && strcmp(scene->name, line))
            scene++;
        int wrong = scene->name ? scene->play() : -1;
        if (wrong)
            snprintf(answer, sizeof answer, "failed %s %d\n", line, wrong);
        else
            snprintf(answer, sizeof answer, "done %s\n", line);
        say(answer);
    }
    return EXIT_CODE;
}
