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

typedef struct {
    struct pool *pool;
    unsigned part;
    pthread_t thread;
} worker;

struct pool {
    unsigned parts, started;
    pid_t owner;
    worker *workers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    atomic_uint generation, pending;
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

static void *work(void *argument) {
    worker *self = argument;
    pool *p = self->pool;
    unsigned seen = 0;
    for (;;) {
        for (int i = 0; i < SPINS && atomic_load(&p->generation) == seen; i++) relax();
        if (atomic_load(&p->generation) == seen) {
            pthread_mutex_lock(&p->mutex);
            while (atomic_load(&p->generation) == seen)
                pthread_cond_wait(&p->wake, &p->mutex);
            pthread_mutex_unlock(&p->mutex);
        }
        seen = atomic_load(&p->generation);
        if (atomic_load(&p->stop)) return NULL;
        p->run(p->context, self->part, p->parts);
        atomic_fetch_sub(&p->pending, 1);
    }
}

static void announce(pool *p) {
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->generation, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mutex);
}

pool *fbnn_pool_create(unsigned parts) {
    pool *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->parts = 1;
    p->owner = getpid();
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->workers = calloc(parts, sizeof(worker));
    if (!p->workers) {
        fbnn_pool_destroy(p);
        return NULL;
    }
    /* Where the system gives fewer threads than asked, fewer are used. */
    for (; p->started + 1 < parts; p->started++) {
        worker *w = &p->workers[p->started];
        w->pool = p;
        w->part = p->started + 1;
        if (pthread_create(&w->thread, NULL, work, w) != 0) break;
    }
    p->parts = p->started + 1;
    return p;
}

void fbnn_pool_destroy(pool *p) {
    if (!p) return;
    /* A forked child has the memory of the pool, but none of its threads. */
    if (p->owner == getpid()) {
        atomic_store(&p->stop, 1);
        announce(p);
        for (unsigned i = 0; i < p->started; i++)
            pthread_join(p->workers[i].thread, NULL);
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
    atomic_store(&p->pending, p->parts - 1);
    announce(p);
    run(context, 0, p->parts);
    for (int i = 0; atomic_load(&p->pending); i++) {
        relax();
        /* On a busy machine a worker may be waiting for this very CPU. */
        if (i >= SPINS) sched_yield();
    }
}

#endif

unsigned fbnn_pool_parts(const pool *p) { return p->parts; }
