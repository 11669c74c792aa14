// Coroutines that move between threads, on stacks without guard pages, each of which throws through watched calls. Same protocol
// as counts.c.
#include <cstdio>
#include <pthread.h>
#include <ucontext.h>
#include <sys/mman.h>
#define PROBED extern "C" __attribute__((noinline, noclone, used))
#define KEEP(v) __asm__ volatile("" : "+r"(v) : : "memory")
enum { N = 64, ROUNDS = 200, THREADS = 4 };
struct Co { ucontext_t own, *back; long sum; bool done; char *stack; } routines[N];
static pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
PROBED long u_throws(long n, Co *co) { KEEP(n); swapcontext(&co->own, co->back); if (n % 2) throw n; return n; }
PROBED long u_mid(long n, long d, Co *co) { long r = d ? u_mid(n, d - 1, co) : u_throws(n, co); KEEP(r); return r; }
PROBED long u_catch(long n, Co *co) { try { long r = u_mid(n, 3, co); KEEP(r); return r; } catch (long t) { return -t; } }
static void body(unsigned lo, unsigned hi) { Co *co = (Co *)((unsigned long)hi << 32 | lo);
  for (long i = 0; i < ROUNDS; i++) co->sum += u_catch(i, co);
  co->done = true; swapcontext(&co->own, co->back); }
static Co *queue[N * 2]; static int head, tail_, left;
static void *worker(void *) { ucontext_t me;
  for (;;) { pthread_mutex_lock(&lock_); if (!left) { pthread_mutex_unlock(&lock_); return 0; }
    Co *co = head == tail_ ? 0 : queue[head++ % (2 * N)]; pthread_mutex_unlock(&lock_); if (!co) continue;
    co->back = &me; swapcontext(&me, &co->own);
    pthread_mutex_lock(&lock_); if (co->done) left--; else queue[tail_++ % (2 * N)] = co; pthread_mutex_unlock(&lock_); } }
int main() { char line[99]; setvbuf(stdout, 0, _IOLBF, 0); puts("ready");
  char *area = (char *)mmap(0, N * 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  while (fgets(line, 99, stdin)) { head = tail_ = 0; left = N;
    for (int i = 0; i < N; i++) { Co *co = &routines[i]; *co = Co(); getcontext(&co->own); co->stack = area + i * 65536;
      co->own.uc_stack.ss_sp = co->stack; co->own.uc_stack.ss_size = 65536; co->own.uc_link = 0;
      makecontext(&co->own, (void (*)())body, 2, (unsigned)(unsigned long)co, (unsigned)((unsigned long)co >> 32)); queue[tail_++] = co; }
    pthread_t t[THREADS]; for (auto &x : t) pthread_create(&x, 0, worker, 0); for (auto x : t) pthread_join(x, 0);
    long sum = 0; for (auto &c : routines) sum += c.sum; printf("done %ld\n", sum); } return 7; }
