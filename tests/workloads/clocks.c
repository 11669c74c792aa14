// Prints what this process's clocks show, each by the vDSO and by a system call, and waits until a time by each way that
// there is. Exits with 1 if a wait is not as long as it should be.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define WAIT 30000000ull // ns

static uint64_t ns(struct timespec t)
{
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint64_t by_vdso(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return ns(t);
}

static uint64_t by_call(clockid_t clock)
{
	struct timespec t;
	syscall(SYS_clock_gettime, clock, &t);
	return ns(t);
}

static struct timespec later(clockid_t clock)
{
	uint64_t then = by_vdso(clock) + WAIT;
	return (struct timespec){ .tv_sec = then / 1000000000, .tv_nsec = then % 1000000000 };
}

// True if that took about as long as it should.
static int took(const char *how, uint64_t begin)
{
	uint64_t took = by_vdso(CLOCK_REALTIME) - begin;
	int good = took >= WAIT - 5000000 && took < 5000000000ull;
	if (!good)
		printf("%s took %lu ns\n", how, took);
	return good;
}

static int waits(clockid_t clock)
{
	uint64_t begin = by_vdso(CLOCK_REALTIME);
	struct timespec until = later(clock);
	clock_nanosleep(clock, TIMER_ABSTIME, &until, NULL);
	int good = took("clock_nanosleep", begin);

	begin = by_vdso(CLOCK_REALTIME);
	struct itimerspec timer = { .it_value = later(clock) };
	int fd = timerfd_create(clock, 0);
	uint64_t expirations = 0;
	timerfd_settime(fd, TFD_TIMER_ABSTIME, &timer, NULL);
	read(fd, &expirations, sizeof(expirations));
	close(fd);
	return took("timerfd", begin) && expirations == 1 && good;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		clockid_t clock;
	} clocks[] = {
		{ "monotonic", CLOCK_MONOTONIC },
		{ "raw", CLOCK_MONOTONIC_RAW },
		{ "coarse", CLOCK_MONOTONIC_COARSE },
		{ "boottime", CLOCK_BOOTTIME },
		{ "realtime", CLOCK_REALTIME },
	};
	// A program that this one runs has the same clocks.
	if (argc > 1)
		return execv(argv[1], argv + 1);
	for (unsigned i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++) {
		clockid_t clock = clocks[i].clock;
		printf("%s %lu %lu\n", clocks[i].name, by_vdso(clock), by_call(clock));
	}
	printf("user %d %d\n", getuid(), getgid());
	fflush(stdout);
	return !(waits(CLOCK_MONOTONIC) && waits(CLOCK_BOOTTIME));
}
