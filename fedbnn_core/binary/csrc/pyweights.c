/* The functions of the Python extension that take a layer's weights. */
#include "pymodule.h"

/* What mix and mix_gradient are given first: kernel, (filters, n1, n2, taps),
 * (lambda, alpha, beta, per_norm, eps, height, slope), (w, w_server, z_server, r1, r2) */
typedef struct {
    const train_kernels *k;
    mixing m;
    const float *r1, *r2;
} layer_weights;

static int take_weights(PyObject *args, layer_weights *of, address rest[4]) {
    const char *name;
    Py_ssize_t filters, n1, n2, taps;
    address w, w_server, z_server, r1, r2;
    mixing *m = &of->m;
    if (!PyArg_ParseTuple(args, "s(nnnn)(fffffff)(KKKKK)(KKKK)", &name, &filters, &n1,
                          &n2, &taps, &m->lam, &m->alpha, &m->beta, &m->per_norm,
                          &m->eps, &m->height, &m->slope, &w, &w_server, &z_server, &r1,
                          &r2, rest, rest + 1, rest + 2, rest + 3))
        return 0;
    m->filters = (size_t)filters, m->n1 = (size_t)n1, m->n2 = (size_t)n2;
    m->taps = (size_t)taps;
    m->w = AT(float, w), m->w_server = AT(float, w_server);
    m->z_server = AT(float, z_server);
    of->r1 = AT(float, r1), of->r2 = AT(float, r2);
    of->k = kernels_of(name);
    return of->k != NULL;
}

/* mix(..., (mixed, moments, signs, 0)) */
PyObject *py_mix(PyObject *self, PyObject *args) {
    (void)self;
    layer_weights of;
    address to[4];
    int done;
    if (!take_weights(args, &of, to)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    done = train_mix(of.k, of.m, of.r1, of.r2, AT(float, to[0]), AT(float, to[1]),
                     AT(float, to[2]));
    Py_END_ALLOW_THREADS
    return finish(done);
}

/* mix_gradient(..., (grad, mixed, moments, dw)) -> dL/dalpha, dL/dbeta, dL/dlambda */
PyObject *py_mix_gradient(PyObject *self, PyObject *args) {
    (void)self;
    layer_weights of;
    address at[4];
    double sums[3];
    int done;
    if (!take_weights(args, &of, at)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    done = train_mix_gradient(of.k, of.m, of.r1, of.r2, AT(float, at[0]),
                              AT(float, at[1]), AT(float, at[2]), AT(float, at[3]),
                              sums);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    return Py_BuildValue("ddd", sums[0], sums[1], sums[2]);
}

/* turn(kernel, (filters, n1, n2), iterations, x, r1, r2) -> deviation */
PyObject *py_turn(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    Py_ssize_t filters, n1, n2, iterations;
    address x, r1, r2;
    float deviation = 0.0f;
    int done;
    if (!PyArg_ParseTuple(args, "s(nnn)nKKK", &name, &filters, &n1, &n2, &iterations, &x,
                          &r1, &r2))
        return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k) return NULL;
    const turning l = {.filters = (size_t)filters, .n1 = (size_t)n1, .n2 = (size_t)n2,
                       .iterations = (size_t)iterations, .x = AT(float, x)};
    Py_BEGIN_ALLOW_THREADS
    done = train_turn(k, l, AT(float, r1), AT(float, r2), &deviation);
    Py_END_ALLOW_THREADS
    return done ? PyFloat_FromDouble((double)deviation) : PyErr_NoMemory();
}
