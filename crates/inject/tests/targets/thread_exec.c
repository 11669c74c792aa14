/* A thread that is not the first waits for a line, and runs the program of the arguments in the place of all. */
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *run(void *arguments)
{
	char go;

	printf("thread %ld\n", syscall(SYS_gettid));
	fflush(stdout);
	read(0, &go, 1);
	execv(*(char **)arguments, arguments);
	return NULL;
}

int main(int count, char **arguments)
{
	pthread_t thread;

	if (count < 2 || pthread_create(&thread, NULL, run, arguments + 1))
		return 1;
	pthread_join(thread, NULL);
	return 2;
}
