/* Lets every process of the same user trace this program, where Yama would let its ancestors only
   (kernel.yama.ptrace_scope is 1). A program gets it by LD_PRELOAD=libbeeline_start.so, or is
   linked with libbeeline_start.a. It needs no library, prints nothing, changes no signal, no
   descriptor and no errno, and starts no thread. Where there is no Yama it has no effect. */
#include <linux/prctl.h>
#include <sys/syscall.h>

#if !defined(__x86_64__) || !defined(__LP64__)
#error "libbeeline_start makes its system call by x86-64's instruction"
#endif

/* fork(2) makes a process that has not asked. A program that is executed runs the constructor
   again. glibc has the first function, musl the second; a program without fork(2) may have none. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern int pthread_atfork(void (*)(void), void (*)(void), void (*)(void)) __attribute__((weak));

static void ask(void)
{
    long result = SYS_prctl;
    register long fourth __asm__("r10") = 0;
    register long fifth __asm__("r8") = 0;
    /* By its instruction, as libc's function would set errno: without Yama the kernel says EINVAL. */
    __asm__ volatile("syscall"
                     : "+a"(result)
                     : "D"((long)PR_SET_PTRACER), "S"(PR_SET_PTRACER_ANY), "d"(0L), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
}

/* Public, so that `-Wl,-u,beeline_start` takes this file out of the archive. */
__attribute__((constructor, visibility("default"))) void beeline_start(void);

void beeline_start(void)
{
    static int registered;

    ask();
    if (registered++)
        return;
    if (__register_atfork)
        __register_atfork(0, 0, ask, 0);
    else if (pthread_atfork)
        pthread_atfork(0, 0, ask);
}
