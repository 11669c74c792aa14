// A target that watches itself: it does one thing, named by its first argument, until its standard input ends, and
// exits with 0 only if nothing has disturbed it. "ready" on its standard output says that it has begun.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <linux/filter.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#define LATE 43 // the exit code of a wait that took too long
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); _exit(1); } } while (0)

static atomic_int over;

static void ready(void) { CHECK(write(1, "ready\n", 6) == 6); }

static void *wait_for_end(void *unused) {
    char byte;
    ssize_t got;
    while ((got = read(0, &byte, 1)) == 1) {}
    CHECK(got == 0);
    over = 1;
    return unused;
}

static void end_with_input(void) {
    pthread_t thread;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    CHECK(pthread_create(&thread, NULL, wait_for_end, NULL) == 0);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static long millis(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// All general registers, the flags, two vector registers and the red zone keep their values in a tight loop.
static long registers_once(void) {
    long bad = 0;
    __asm__ volatile(
        "push %%rbp\n push %%rbx\n sub $256, %%rsp\n"
        "mov $0x1111, %%rax\n mov $0x2222, %%rbx\n mov $0x3333, %%rcx\n mov $0x4444, %%rdx\n"
        "mov $0x5555, %%rsi\n mov $0x6666, %%rdi\n mov $0x7777, %%rbp\n mov $0x8888, %%r8\n"
        "mov $0x9999, %%r9\n mov $0xaaaa, %%r10\n mov $0xbbbb, %%r11\n mov $0xcccc, %%r12\n"
        "mov $0xdddd, %%r13\n mov $0xeeee, %%r14\n mov $200000, %%r15\n"
        "movq %%r11, %%xmm3\n movq %%r12, %%xmm15\n"
        "movq %%r13, -8(%%rsp)\n movq %%r14, -120(%%rsp)\n movq %%r14, -128(%%rsp)\n"
        "1:\n stc\n nop\n nop\n nop\n nop\n jnc 9f\n"
        "cmp $0x1111, %%rax\n jne 9f\n cmp $0x2222, %%rbx\n jne 9f\n cmp $0x3333, %%rcx\n jne 9f\n"
        "cmp $0x4444, %%rdx\n jne 9f\n cmp $0x5555, %%rsi\n jne 9f\n cmp $0x6666, %%rdi\n jne 9f\n"
        "cmp $0x7777, %%rbp\n jne 9f\n cmp $0x8888, %%r8\n jne 9f\n cmp $0x9999, %%r9\n jne 9f\n"
        "cmp $0xaaaa, %%r10\n jne 9f\n cmp $0xbbbb, %%r11\n jne 9f\n cmp $0xcccc, %%r12\n jne 9f\n"
        "cmp $0xdddd, %%r13\n jne 9f\n cmp $0xeeee, %%r14\n jne 9f\n"
        "cmp %%r13, -8(%%rsp)\n jne 9f\n cmp %%r14, -120(%%rsp)\n jne 9f\n cmp %%r14, -128(%%rsp)\n jne 9f\n"
        "movq %%xmm3, %%rax\n cmp %%r11, %%rax\n jne 9f\n movq %%xmm15, %%rax\n cmp %%r12, %%rax\n jne 9f\n"
        "mov $0x1111, %%rax\n dec %%r15\n jnz 1b\n mov $0, %%r15\n jmp 8f\n"
        "9: mov $1, %%r15\n"
        "8: add $256, %%rsp\n pop %%rbx\n pop %%rbp\n mov %%r15, %0\n"
        : "=m"(bad) : : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
          "xmm3", "xmm15", "memory", "cc");
    return bad;
}

static void registers(void) {
    end_with_input();
    ready();
    while (!over) CHECK(registers_once() == 0);
}

// Threads that count, each its own counter, and that make system calls.
static void *count(void *counter) {
    volatile long *own = counter;
    long expected = 0;
    while (!over) {
        for (int i = 0; i < 100; i++) { ++*own; ++expected; }
        CHECK(*own == expected);
        if ((expected / 100) % 64 == 0) {
            struct timespec nap = {0, 2000000};
            CHECK(nanosleep(&nap, NULL) == 0);
        }
        CHECK(syscall(SYS_getppid) > 0);
    }
    return NULL;
}

static void threads(int many) {
    static long counters[1024];
    pthread_t ids[1024];
    CHECK(many <= 1024);
    for (int i = 0; i < many - 2; i++) CHECK(pthread_create(&ids[i], NULL, count, &counters[i]) == 0);
    end_with_input();
    ready();
    while (!over) usleep(1000);
    for (int i = 0; i < many - 2; i++) CHECK(pthread_join(ids[i], NULL) == 0);
}

// Threads come and go all the time.
static void *nothing(void *unused) { return unused; }

static void churn(void) {
    end_with_input();
    ready();
    while (!over) {
        pthread_t ids[4];
        for (int i = 0; i < 4; i++) CHECK(pthread_create(&ids[i], NULL, nothing, NULL) == 0);
        for (int i = 0; i < 4; i++) CHECK(pthread_join(ids[i], NULL) == 0);
    }
}

// The first thread ends before the others.
static void headless(void) {
    end_with_input();
    ready();
    pthread_exit(NULL);
}

// A timer fires all the time, and a child queues signals that must all arrive, once and in order.
static volatile sig_atomic_t alarms;
static volatile int queued, disorder;
static void on_alarm(int signal) { (void)signal; alarms++; }
static void on_queued(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    if (info->si_value.sival_int != queued++ || info->si_code != SI_QUEUE) disorder++;
}

static void storm(void) {
    enum { MANY = 20000 };
    struct sigaction alarm_action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct sigaction queued_action = {.sa_sigaction = on_queued, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGALRM, &alarm_action, NULL);
    sigaction(SIGRTMIN, &queued_action, NULL);
    struct itimerval often = {{0, 100}, {0, 100}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < MANY; i++) {
            while (sigqueue(parent, SIGRTMIN, (union sigval){.sival_int = i}) != 0) usleep(100);
            if (i % 8 == 0) usleep(100);
        }
        _exit(0);
    }
    ready();
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 1000 && queued < MANY; i++) usleep(1000);
    CHECK(queued == MANY);
    CHECK(disorder == 0);
    // Where others want the CPU many alarms become one.
    for (int i = 0; i < 10000 && alarms <= 100; i++) usleep(1000);
    CHECK(alarms > 100);
    char byte;
    CHECK(read(0, &byte, 1) == 0);
}

// One blocking call that must take the time it was given and must not be interrupted.
static void blocked(const char *in, long wanted) {
    struct timespec time = {wanted / 1000, wanted % 1000 * 1000000};
    static int word;
    struct pollfd none = {.fd = -1};
    int epoll = epoll_create1(EPOLL_CLOEXEC), pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    long start, slack = 400; // less than the visits last: a wait begun anew in them is told from a slow machine
    sigset_t set, hup;
    sigemptyset(&set);
    sigemptyset(&hup);
    sigaddset(&hup, SIGHUP);
    sigprocmask(SIG_BLOCK, &hup, NULL);
    ready();
    start = millis();
    if (!strcmp(in, "nanosleep")) CHECK(nanosleep(&time, NULL) == 0);
    else if (!strcmp(in, "poll")) CHECK(poll(&none, 1, wanted) == 0);
    else if (!strcmp(in, "futex")) CHECK(syscall(SYS_futex, &word, FUTEX_WAIT, 0, &time, NULL, 0) == -1 && errno == ETIMEDOUT);
    // This one's clock stands still while it is held, of which the test does not know how long.
    else if (slack = 5000, !strcmp(in, "ppoll")) CHECK(ppoll(&none, 1, &time, &set) == 0);
    // These begin their time anew.
    else if (!strcmp(in, "epoll")) CHECK(epoll_wait(epoll, &(struct epoll_event){0}, 1, wanted) == 0);
    else if (!strcmp(in, "epoll_pwait")) CHECK(epoll_pwait(epoll, &(struct epoll_event){0}, 1, wanted, &set) == 0);
    else if (!strcmp(in, "sigtimedwait")) CHECK(sigtimedwait(&hup, NULL, &time) == -1 && errno == EAGAIN);
    else if (!strcmp(in, "recv")) {
        struct timeval timeout = {wanted / 1000, wanted % 1000 * 1000};
        CHECK(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
        char byte;
        CHECK(recv(pair[0], &byte, 1, 0) == -1 && errno == EAGAIN);
    }
    // And these end with the input.
    else if (wanted = 0, !strcmp(in, "read")) { char byte; CHECK(read(0, &byte, 1) == 0); }
    else if (!strcmp(in, "epoll-input")) {
        struct epoll_event event = {.events = EPOLLIN};
        CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event) == 0);
        CHECK(epoll_wait(epoll, &event, 1, -1) == 1);
    }
    else CHECK(!"a known call");
    long took = millis() - start;
    if (took < wanted || (wanted && took > wanted + slack)) {
        fprintf(stderr, "%s took %ld ms instead of %ld\n", in, took, wanted);
        _exit(took < wanted ? 1 : LATE);
    }
}

// Signals that few processes handle. This one counts SIGWINCH and blocks SIGURG, and fails if one comes that it has not
// sent.
static volatile long noticed;
static void on_notice(int signal) { (void)signal; noticed++; }
static void noticing(void) {
    struct sigaction action = {.sa_handler = on_notice, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGWINCH, &action, NULL) == 0);
    sigset_t waits, pending;
    sigemptyset(&waits);
    sigaddset(&waits, SIGURG);
    CHECK(sigprocmask(SIG_BLOCK, &waits, NULL) == 0);
    end_with_input();
    ready();
    for (long sent = 0; !over;) {
        CHECK(noticed == sent);
        CHECK(raise(SIGWINCH) == 0);
        CHECK(noticed == ++sent);
        CHECK(sigpending(&pending) == 0 && !sigismember(&pending, SIGURG));
    }
    CHECK(raise(SIGURG) == 0 && sigpending(&pending) == 0 && sigismember(&pending, SIGURG));
}

// A handler must interrupt what a handler interrupts: EINTR is not taken away.
static void on_signal(int signal) { (void)signal; }
static void interrupted(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    ready();
    CHECK(epoll_wait(epoll, &(struct epoll_event){0}, 1, 20000) == -1 && errno == EINTR);
    ready();
    char byte;
    CHECK(read(0, &byte, 1) == 0);
}

// In sigsuspend a signal that it blocks must not come through, although it is not blocked otherwise.
static volatile sig_atomic_t hups, usr1s;
static void on_hup(int signal) { (void)signal; hups++; }
static void on_usr1(int signal) { (void)signal; usr1s++; }
static void suspended(void) {
    sigset_t set;
    struct sigaction hup = {.sa_handler = on_hup}, usr1 = {.sa_handler = on_usr1};
    sigaction(SIGHUP, &hup, NULL);
    sigaction(SIGUSR1, &usr1, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    ready();
    CHECK(sigsuspend(&set) == -1 && errno == EINTR);
    CHECK(usr1s == 1);
    CHECK(hups == 1); // it was pending, and is delivered together with the other
    ready();
    char byte;
    CHECK(read(0, &byte, 1) == 0);
}

// Sits in a signal handler, on an alternate stack if asked.
static void linger(int signal) {
    (void)signal;
    ready();
    char byte;
    CHECK(read(0, &byte, 1) == 0);
    _exit(0);
}

__attribute__((noinline)) void spin_here(void) { for (;;) __asm__ volatile("nop"); }

static void handler(int alternate) {
    static char stack[65536];
    stack_t alternate_stack = {.ss_sp = stack, .ss_size = sizeof stack};
    CHECK(sigaltstack(&alternate_stack, NULL) == 0);
    struct sigaction action = {.sa_handler = linger, .sa_flags = alternate ? SA_ONSTACK : 0};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval soon = {{0, 0}, {0, 50000}};
    setitimer(ITIMER_REAL, &soon, NULL);
    printf("spin_here %p\n", (void *)spin_here);
    fflush(stdout);
    spin_here();
}

// A restartable sequence that never ends by itself: whenever the thread is interrupted in it the kernel must
// start it anew, or it hangs.
extern const ptrdiff_t __rseq_offset;
static void restartable(void) {
    end_with_input();
    ready();
    long times = 0;
    while (!over) {
        char *area = (char *)__builtin_thread_pointer() + __rseq_offset;
        __asm__ volatile(
            ".pushsection .data.rseq, \"aw\"\n .balign 32\n"
            "3: .long 0, 0\n .quad 1f, 2f - 1f, 4f\n .popsection\n"
            "lea 3b(%%rip), %%rax\n mov %%rax, 8(%0)\n"
            "1: pause\n jmp 1b\n"
            "2: ud2\n"
            ".byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n"
            "4: nop\n"
            : : "r"(area) : "rax", "memory");
        times++;
    }
    CHECK(times > 1);
}

// All system calls of the first thread go to itself, as signals; there must be none.
static volatile char selector;
static volatile int dispatched;
static void on_dispatch(int signal) { (void)signal; dispatched++; selector = 0; }
static void dispatching(void) {
    struct sigaction action = {.sa_handler = on_dispatch};
    sigaction(SIGSYS, &action, NULL);
    end_with_input();
    CHECK(prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &selector) == 0);
    ready();
    selector = 1;
    while (!over && !dispatched) {}
    CHECK(dispatched == 0);
    syscall(SYS_getpid);
    CHECK(dispatched == 1);
}

// Runs itself again and again, from another than the first thread and with more of them about.
static void *run_again(void *argument) {
    char **argv = argument, left[16];
    snprintf(left, sizeof left, "%d", atoi(argv[2]) - 1);
    execl("/proc/self/exe", argv[0], argv[1], left, NULL);
    CHECK(!"execl");
    return NULL;
}
static void *sleeps(void *unused) { for (;;) usleep(100); return unused; }
static void executing(char **argv) {
    pthread_t thread;
    if (atoi(argv[2]) == 0) return;
    if (atoi(argv[2]) == 1000) ready();
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&thread, NULL, sleeps, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, run_again, argv) == 0);
    for (;;) pause();
}

// A child that shares everything holds its parent in vfork for a while.
static void vforked(void) {
    end_with_input();
    ready();
    pid_t child = vfork();
    if (child == 0) {
        struct timespec long_time = {3, 0};
        syscall(SYS_nanosleep, &long_time, NULL);
        _exit(7);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    while (!over) usleep(1000);
}

// The same with no other thread.
static void vforked_alone(void) {
    ready();
    pid_t child = vfork();
    if (child == 0) {
        struct timespec a_while = {0, 500 * 1000 * 1000};
        syscall(SYS_nanosleep, &a_while, NULL);
        _exit(7);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    char byte;
    while (read(0, &byte, 1) > 0) continue;
}

// Allows what this program needs and kills it for all else.
static void confined(void) {
    static const int allowed[] = {SYS_read, SYS_write, SYS_exit_group, SYS_exit, SYS_nanosleep, SYS_clock_nanosleep, SYS_restart_syscall};
    enum { MANY = sizeof allowed / sizeof *allowed };
    struct sock_filter code[MANY + 3] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
    for (int i = 0; i < MANY; i++) code[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], MANY - i, 0);
    code[MANY + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    code[MANY + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = MANY + 3, .filter = code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    ready();
    char byte;
    CHECK(read(0, &byte, 1) == 0);
}

// Sleeps all the time, and may not resume a sleep. Ends with its standard input.
static void sleeping(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_restart_syscall, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    ready();
    struct timespec while_ = {.tv_nsec = 20 * 1000 * 1000};
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 0) == 0)
        CHECK(nanosleep(&while_, 0) == 0);
}

// Nobody but root may look into it.
static void secretive(void) {
    CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
    ready();
    char byte;
    CHECK(read(0, &byte, 1) == 0);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "registers")) registers();
    else if (!strcmp(what, "threads")) threads(atoi(argv[2]));
    else if (!strcmp(what, "churn")) churn();
    else if (!strcmp(what, "headless")) headless();
    else if (!strcmp(what, "storm")) storm();
    else if (!strcmp(what, "blocked")) blocked(argv[2], 1000);
    else if (!strcmp(what, "noticing")) noticing();
    else if (!strcmp(what, "interrupted")) interrupted();
    else if (!strcmp(what, "suspended")) suspended();
    else if (!strcmp(what, "handler")) handler(0);
    else if (!strcmp(what, "handler-alternate")) handler(1);
    else if (!strcmp(what, "vforked")) vforked();
    else if (!strcmp(what, "vforked alone")) vforked_alone();
    else if (!strcmp(what, "confined")) confined();
    else if (!strcmp(what, "sleeping")) sleeping();
    else if (!strcmp(what, "secretive")) secretive();
    else if (!strcmp(what, "restartable")) restartable();
    else if (!strcmp(what, "dispatching")) dispatching();
    else if (!strcmp(what, "executing")) executing(argv);
    else CHECK(!"a known task");
    return 42;
}
