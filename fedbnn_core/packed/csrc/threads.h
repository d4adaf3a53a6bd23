/* A small pool of threads that run the parts of one job and wait for the next. */
#ifndef FBNN_THREADS_H
#define FBNN_THREADS_H

typedef struct pool pool;
typedef void (*job)(void *context, unsigned part, unsigned parts);

/* NULL if there is no memory; a pool of one part has no thread of its own. */
pool *fbnn_pool_create(unsigned parts);
void fbnn_pool_destroy(pool *p);
unsigned fbnn_pool_parts(const pool *p);
/* Run all parts, the calling thread takes some; returns when all are done. */
void fbnn_pool_run(pool *p, job run, void *context);

#endif
