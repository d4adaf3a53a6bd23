/* The Python extension fedbnn_core.binary._train. It takes the addresses of tensors,
 * whose shapes and types its only callers, fedbnn_core/binary/native_*.py, have checked. */
#include "pymodule.h"

const train_kernels *kernels_of(const char *name) {
    const train_kernels *k = train_find(name);
    if (!k) PyErr_Format(PyExc_ValueError, "this CPU has no kernel set %s", name);
    return k;
}

PyObject *finish(int done) {
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static int take_geometry(PyObject *numbers, geometry *g) {
    size_t of[9];
    for (Py_ssize_t i = 0; i < 9; i++) {
        PyObject *item = PyTuple_GetItem(numbers, i);
        of[i] = item ? PyLong_AsSize_t(item) : 0;
        if (PyErr_Occurred()) return 0;
    }
    if (train_geometry(g, of)) return 1;
    PyErr_SetString(PyExc_ValueError, "no kernel for a convolution of this shape");
    return 0;
}

static PyObject *py_kernels(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    PyObject *list = PyList_New(0);
    for (const char *const *name = train_names(); list && *name; name++) {
        PyObject *text = PyUnicode_FromString(*name);
        if (!text || PyList_Append(list, text) != 0) Py_CLEAR(list);
        Py_XDECREF(text);
    }
    return list;
}

/* sizes(geometry) -> (bytes of the inputs' signs, bytes of the rounded gradient) */
static PyObject *py_sizes(PyObject *self, PyObject *numbers) {
    (void)self;
    geometry g;
    if (!take_geometry(numbers, &g)) return NULL;
    return Py_BuildValue("nn", (Py_ssize_t)train_sign_bytes(&g),
                         (Py_ssize_t)train_gradient_bytes(&g));
}

/* signs(kernel, x, pixels, channels, steep, limit, bits, slopes or 0) */
static PyObject *py_signs(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    address x, bits, slopes;
    Py_ssize_t pixels, channels;
    float steep, limit;
    if (!PyArg_ParseTuple(args, "sKnnffKK", &name, &x, &pixels, &channels, &steep, &limit,
                          &bits, &slopes))
        return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k) return NULL;
    Py_BEGIN_ALLOW_THREADS
    train_signs(k, AT(float, x), (size_t)pixels, (size_t)channels, steep, limit,
                AT(uint8_t, bits), AT(uint8_t, slopes));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* forward(kernel, geometry, bits, weights, y) */
static PyObject *py_forward(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    PyObject *numbers;
    address bits, weights, y;
    geometry g;
    int done;
    if (!PyArg_ParseTuple(args, "sOKKK", &name, &numbers, &bits, &weights, &y))
        return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k || !take_geometry(numbers, &g)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    done = train_forward(k, &g, AT(uint8_t, bits), AT(float, weights), AT(int16_t, y));
    Py_END_ALLOW_THREADS
    return finish(done);
}

/* normalize(kernel, geometry, 1 for float y, y, pool, gamma, beta, eps, out, saved) */
static PyObject *py_normalize(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    PyObject *numbers;
    address y, gamma, beta, out, saved;
    int floats, pool, done;
    double eps;
    geometry g;
    if (!PyArg_ParseTuple(args, "sOpKiKKdKK", &name, &numbers, &floats, &y, &pool,
                          &gamma, &beta, &eps, &out, &saved))
        return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k || !take_geometry(numbers, &g)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    done = train_normalize(k, &g, floats ? OF_FLOATS : OF_SUMS, AT(void, y), pool,
                           AT(float, gamma), AT(float, beta), eps, AT(float, out),
                           AT(double, saved));
    Py_END_ALLOW_THREADS
    return finish(done);
}

/* norm_gradient(kernel, geometry, dz, y, pool, gamma, saved, levels, key0, key1,
 *               rounded, dgamma, dbeta) -> scale */
static PyObject *py_norm_gradient(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    PyObject *numbers;
    address dz, y, gamma, saved, rounded, dgamma, dbeta;
    int pool, levels, done;
    unsigned first, second;
    geometry g;
    float scale = 0.0f;
    if (!PyArg_ParseTuple(args, "sOKKiKKiIIKKK", &name, &numbers, &dz, &y, &pool, &gamma,
                          &saved, &levels, &first, &second, &rounded, &dgamma, &dbeta))
        return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k || !take_geometry(numbers, &g)) return NULL;
    const uint32_t key[2] = {first, second};
    Py_BEGIN_ALLOW_THREADS
    done = train_norm_gradient(k, &g, AT(float, dz), AT(int16_t, y), pool,
                               AT(float, gamma), AT(double, saved), levels, key,
                               AT(uint8_t, rounded), &scale, AT(float, dgamma),
                               AT(float, dbeta));
    Py_END_ALLOW_THREADS
    return done ? PyFloat_FromDouble((double)scale) : PyErr_NoMemory();
}

/* float_norm_gradient(kernel, geometry, dz, y, pool, gamma, saved, dy, dgamma, dbeta) */
static PyObject *py_float_norm_gradient(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    PyObject *numbers;
    address dz, y, gamma, saved, dy, dgamma, dbeta;
    int pool, done;
    geometry g;
    if (!PyArg_ParseTuple(args, "sOKKiKKKKK", &name, &numbers, &dz, &y, &pool, &gamma,
                          &saved, &dy, &dgamma, &dbeta))
        return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k || !take_geometry(numbers, &g)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    done = train_float_norm_gradient(k, &g, AT(float, dz), AT(float, y), pool,
                                     AT(float, gamma), AT(double, saved), AT(float, dy),
                                     AT(float, dgamma), AT(float, dbeta));
    Py_END_ALLOW_THREADS
    return finish(done);
}

/* round(kernel, geometry, dy, levels, key0, key1, rounded) -> scale */
static PyObject *py_round(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    PyObject *numbers;
    address dy, rounded;
    int levels, done;
    unsigned first, second;
    geometry g;
    float scale = 0.0f;
    if (!PyArg_ParseTuple(args, "sOKiIIK", &name, &numbers, &dy, &levels, &first, &second,
                          &rounded))
        return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k || !take_geometry(numbers, &g)) return NULL;
    const uint32_t key[2] = {first, second};
    const norm_gradient plain = {.dz = AT(float, dy), .pool = POOL_NONE};
    Py_BEGIN_ALLOW_THREADS
    done = train_round(k, &g, &plain, levels, key, AT(uint8_t, rounded), &scale);
    Py_END_ALLOW_THREADS
    return done ? PyFloat_FromDouble((double)scale) : PyErr_NoMemory();
}

/* input_gradient(kernel, geometry, rounded, weights, slopes, factor, dx) */
static PyObject *py_input_gradient(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    PyObject *numbers;
    address rounded, weights, slopes, dx;
    float factor;
    geometry g;
    int done;
    if (!PyArg_ParseTuple(args, "sOKKKfK", &name, &numbers, &rounded, &weights, &slopes,
                          &factor, &dx))
        return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k || !take_geometry(numbers, &g)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    done = train_input_gradient(k, &g, AT(uint8_t, rounded), AT(int8_t, weights),
                                AT(uint8_t, slopes), factor, AT(float, dx));
    Py_END_ALLOW_THREADS
    return finish(done);
}

/* weight_gradient(kernel, geometry, rounded, bits, factor, dw) */
static PyObject *py_weight_gradient(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    PyObject *numbers;
    address rounded, bits, dw;
    float factor;
    geometry g;
    int done;
    if (!PyArg_ParseTuple(args, "sOKKfK", &name, &numbers, &rounded, &bits, &factor, &dw))
        return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k || !take_geometry(numbers, &g)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    done = train_weight_gradient(k, &g, AT(uint8_t, rounded), AT(uint8_t, bits), factor,
                                 AT(float, dw));
    Py_END_ALLOW_THREADS
    return finish(done);
}

/* clamped_sum(kernel, a, b, n, out, inside) */
static PyObject *py_clamped_sum(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    address a, b, out, inside;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "sKKnKK", &name, &a, &b, &n, &out, &inside)) return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k) return NULL;
    Py_BEGIN_ALLOW_THREADS
    k->clamped_sum(AT(float, a), AT(float, b), (size_t)n, AT(float, out),
                   AT(uint8_t, inside));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* mask(kernel, v, inside, n, out) */
static PyObject *py_mask(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    address v, inside, out;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "sKKnK", &name, &v, &inside, &n, &out)) return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k) return NULL;
    Py_BEGIN_ALLOW_THREADS
    k->mask(AT(float, v), AT(uint8_t, inside), (size_t)n, AT(float, out));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"kernels", py_kernels, METH_NOARGS, "Names of the usable kernels, fastest first."},
    {"sizes", py_sizes, METH_O, "Bytes of signs and of the rounded gradient."},
    {"signs", py_signs, METH_VARARGS, "Pack signs, and surrogate slopes in 8 bits."},
    {"forward", py_forward, METH_VARARGS, "Sums of a convolution of signs."},
    {"normalize", py_normalize, METH_VARARGS, "Batch norm and max-pool."},
    {"norm_gradient", py_norm_gradient, METH_VARARGS,
     "Round dL/dy behind a batch norm, return its scale."},
    {"float_norm_gradient", py_float_norm_gradient, METH_VARARGS,
     "dL/dy of floats behind a batch norm."},
    {"round", py_round, METH_VARARGS, "Round dL/dy at random, return its scale."},
    {"input_gradient", py_input_gradient, METH_VARARGS, "dL/dx."},
    {"weight_gradient", py_weight_gradient, METH_VARARGS, "dL/dw."},
    {"clamped_sum", py_clamped_sum, METH_VARARGS, "hardtanh(a + b) and its mask."},
    {"mask", py_mask, METH_VARARGS, "v where the mask is set, else 0."},
    {"mix", py_mix, METH_VARARGS, "The mixed weight and its sign."},
    {"mix_gradient", py_mix_gradient, METH_VARARGS, "Gradient of the mixed sign."},
    {"turn", py_turn, METH_VARARGS, "Learn rotations, return their deviation."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_train", "Binary convolutions trained in integers.", -1,
    methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__train(void) { return PyModule_Create(&definition); }
