/*
 * A producer and a consumer, each bound to a CPU, with a queue between them.
 *
 *     spsc MILLISECONDS ROUNDS    prints for each round the nanoseconds that an item took
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SLOTS 1024

static struct {
	_Alignas(64) _Atomic uint64_t head;
	_Alignas(64) _Atomic uint64_t tail;
	_Alignas(64) uint64_t slots[SLOTS];
} queue;
static _Atomic int over;

static void bind_to(int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	if (sched_setaffinity(0, sizeof one, &one)) {
		perror("sched_setaffinity");
		exit(1);
	}
}

static void *produce(void *unused)
{
	uint64_t head = 0;

	(void)unused;
	bind_to(0);
	while (!atomic_load_explicit(&over, memory_order_relaxed)) {
		if (head - atomic_load_explicit(&queue.tail, memory_order_acquire) == SLOTS)
			continue;
		queue.slots[head % SLOTS] = head;
		atomic_store_explicit(&queue.head, ++head, memory_order_release);
	}
	return NULL;
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

int main(int argc, char **argv)
{
	uint64_t tail = 0, length, begin, first;
	pthread_t producer;
	int round;

	if (argc < 3)
		return 2;
	length = strtoull(argv[1], NULL, 10) * 1000000;
	if (pthread_create(&producer, NULL, produce, NULL))
		return 1;
	bind_to(1);
	/* The first round lets whoever watches the binding act on it. */
	for (round = 0; round <= atoi(argv[2]); round++) {
		begin = now();
		first = tail;
		while (now() - begin < length) {
			if (atomic_load_explicit(&queue.head, memory_order_acquire) == tail)
				continue;
			if (queue.slots[tail % SLOTS] != tail)
				return 3;
			atomic_store_explicit(&queue.tail, ++tail, memory_order_release);
		}
		if (round && tail > first)
			printf("%.1f\n", (double)(now() - begin) / (tail - first));
	}
	atomic_store(&over, 1);
	pthread_join(producer, NULL);
	return 0;
}
