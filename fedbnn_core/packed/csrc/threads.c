#if !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L
#endif
#include "threads.h"

#include <stdlib.h>

#if defined(FBNN_NO_THREADS) || defined(_WIN32)

struct pool {
    unsigned parts;
};

pool *fbnn_pool_create(unsigned parts) {
    pool *p = malloc(sizeof *p);
    (void)parts;
    if (p) p->parts = 1;
    return p;
}

void fbnn_pool_destroy(pool *p) { free(p); }

void fbnn_pool_run(pool *p, job run, void *context) { run(context, 0, p->parts); }

#else

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

/* A layer takes tens of microseconds: a worker looks for the next job this many times
 * before it goes to sleep, which would cost about as much as the layer. */
enum { SPINS = 2000 };

/* More than there can be parts; 32 bits, because not every target has larger atomics. */
enum { JOB = 1024 };

/* The parts of a job are taken one by one by whoever comes first: a thread that gets no
 * CPU in time takes none, and the caller does its part. */
struct pool {
    unsigned parts, started;
    pid_t owner;
    pthread_t *workers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    /* The job's number times JOB, plus its next part: in one, so that nobody takes a
     * part of a job that is over. */
    atomic_uint ticket, pending;
    atomic_int stop;
    job run;
    void *context;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static unsigned current_job(pool *p) { return atomic_load(&p->ticket) / JOB; }

/* Run parts of the current job until none is left to take. `run` and `context` stay as
 * they are while a part that was taken is pending. */
static void run_parts(pool *p) {
    unsigned ticket = atomic_load(&p->ticket);
    while (ticket % JOB < p->parts) {
        if (!atomic_compare_exchange_weak(&p->ticket, &ticket, ticket + 1)) continue;
        p->run(p->context, ticket % JOB, p->parts);
        atomic_fetch_sub(&p->pending, 1);
        ticket = atomic_load(&p->ticket);
    }
}

static int nothing_new(pool *p, unsigned seen) {
    return current_job(p) == seen && !atomic_load(&p->stop);
}

static void *work(void *argument) {
    pool *p = argument;
    unsigned seen = 0;
    while (!atomic_load(&p->stop)) {
        for (int i = 0; i < SPINS && nothing_new(p, seen); i++) relax();
        if (nothing_new(p, seen)) {
            pthread_mutex_lock(&p->mutex);
            while (nothing_new(p, seen)) pthread_cond_wait(&p->wake, &p->mutex);
            pthread_mutex_unlock(&p->mutex);
        }
        seen = current_job(p);
        run_parts(p);
    }
    return NULL;
}

static void wake_all(pool *p) {
    pthread_mutex_lock(&p->mutex);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mutex);
}

pool *fbnn_pool_create(unsigned parts) {
    pool *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->parts = 1;
    p->ticket = JOB - 1; /* no part to take */
    p->owner = getpid();
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->workers = calloc(parts, sizeof *p->workers);
    if (!p->workers) {
        fbnn_pool_destroy(p);
        return NULL;
    }
    /* Where the system gives fewer threads than asked, fewer are used. */
    for (; p->started + 1 < parts; p->started++)
        if (pthread_create(&p->workers[p->started], NULL, work, p) != 0) break;
    p->parts = p->started + 1;
    return p;
}

void fbnn_pool_destroy(pool *p) {
    if (!p) return;
    /* A forked child has the memory of the pool, but none of its threads. */
    if (p->owner == getpid()) {
        atomic_store(&p->stop, 1);
        wake_all(p);
        for (unsigned i = 0; i < p->started; i++) pthread_join(p->workers[i], NULL);
    }
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
    free(p->workers);
    free(p);
}

void fbnn_pool_run(pool *p, job run, void *context) {
    if (p->parts == 1 || p->owner != getpid()) {
        for (unsigned part = 0; part < p->parts; part++) run(context, part, p->parts);
        return;
    }
    p->run = run;
    p->context = context;
    atomic_store(&p->pending, p->parts);
    atomic_store(&p->ticket, (current_job(p) + 1) * JOB);
    wake_all(p);
    run_parts(p);
    for (int i = 0; atomic_load(&p->pending); i++) {
        relax();
        /* On a busy machine a worker may be waiting for this very CPU. */
        if (i >= SPINS) sched_yield();
    }
}

#endif

unsigned fbnn_pool_parts(const pool *p) { return p->parts; }
