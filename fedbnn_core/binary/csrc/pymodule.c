/* The Python extension fedbnn_core.binary._train. It takes the addresses of tensors,
 * whose shapes and types its only caller, fedbnn_core/binary/native.py, has checked.
 * Limited API of Python 3.11, so that one build serves all later versions. */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include "train.h"

typedef unsigned long long address;
#define AT(type, number) ((type *)(uintptr_t)(number))

static const train_kernels *kernels_of(const char *name) {
    const train_kernels *k = train_find(name);
    if (!k) PyErr_Format(PyExc_ValueError, "this CPU has no kernel set %s", name);
    return k;
}

static int take_geometry(PyObject *numbers, geometry *g) {
    size_t of[8];
    for (Py_ssize_t i = 0; i < 8; i++) {
        PyObject *item = PyTuple_GetItem(numbers, i);
        of[i] = item ? PyLong_AsSize_t(item) : 0;
        if (PyErr_Occurred()) return 0;
    }
    if (train_geometry(g, of)) return 1;
    PyErr_SetString(PyExc_ValueError, "no kernel for a convolution of this shape");
    return 0;
}

static PyObject *finish(int done) {
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
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

/* pool(kernel, geometry, y, flip, out) */
static PyObject *py_pool(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    PyObject *numbers;
    address y, flip, out;
    geometry g;
    if (!PyArg_ParseTuple(args, "sOKKK", &name, &numbers, &y, &flip, &out)) return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k || !take_geometry(numbers, &g)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    train_pool(k, &g, AT(int16_t, y), AT(float, flip), AT(int16_t, out));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* moments(kernel, y, pixels, channels, largest |y|, sums, squares) */
static PyObject *py_moments(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    address y, sums, squares;
    Py_ssize_t pixels, channels;
    int bound, done;
    if (!PyArg_ParseTuple(args, "sKnniKK", &name, &y, &pixels, &channels, &bound, &sums,
                          &squares))
        return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k) return NULL;
    Py_BEGIN_ALLOW_THREADS
    done = train_moments(k, AT(int16_t, y), (size_t)pixels, (size_t)channels, bound,
                         AT(int64_t, sums), AT(int64_t, squares));
    Py_END_ALLOW_THREADS
    return finish(done);
}

/* affine(kernel, y, pixels, channels, gain, offset, out) */
static PyObject *py_affine(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    address y, gain, offset, out;
    Py_ssize_t pixels, channels;
    if (!PyArg_ParseTuple(args, "sKnnKKK", &name, &y, &pixels, &channels, &gain, &offset,
                          &out))
        return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k) return NULL;
    Py_BEGIN_ALLOW_THREADS
    k->affine(AT(int16_t, y), (size_t)pixels, (size_t)channels, AT(float, gain),
              AT(float, offset), AT(float, out));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* norm_sums(kernel, dz, y, pixels, channels, mean, sums, products) */
static PyObject *py_norm_sums(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    address dz, y, mean, sums, products;
    Py_ssize_t pixels, channels;
    int done;
    if (!PyArg_ParseTuple(args, "sKKnnKKK", &name, &dz, &y, &pixels, &channels, &mean,
                          &sums, &products))
        return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k) return NULL;
    Py_BEGIN_ALLOW_THREADS
    done = train_norm_sums(k, AT(float, dz), AT(int16_t, y), (size_t)pixels,
                           (size_t)channels, AT(float, mean), AT(double, sums),
                           AT(double, products));
    Py_END_ALLOW_THREADS
    return finish(done);
}

/* round(kernel, geometry, dz, y or 0, gain, constant, linear, flip, pool, levels,
 *       key0, key1, rounded) -> scale */
static PyObject *py_round(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    PyObject *numbers;
    address dz, y, gain, constant, linear, flip, rounded;
    int pool, levels, done;
    unsigned first, second;
    geometry g;
    float scale = 0.0f;
    if (!PyArg_ParseTuple(args, "sOKKKKKKiiIIK", &name, &numbers, &dz, &y, &gain,
                          &constant, &linear, &flip, &pool, &levels, &first, &second,
                          &rounded))
        return NULL;
    const train_kernels *k = kernels_of(name);
    if (!k || !take_geometry(numbers, &g)) return NULL;
    const uint32_t key[2] = {first, second};
    const norm_gradient norm = {AT(float, dz),       AT(int16_t, y),
                                AT(float, gain),     AT(float, constant),
                                AT(float, linear),   AT(float, flip),
                                pool};
    Py_BEGIN_ALLOW_THREADS
    done = train_round(k, &g, &norm, levels, key, AT(uint8_t, rounded), &scale);
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
    done = train_input_gradient(k, &g, AT(uint8_t, rounded), AT(float, weights),
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

static PyMethodDef methods[] = {
    {"kernels", py_kernels, METH_NOARGS, "Names of the usable kernels, fastest first."},
    {"sizes", py_sizes, METH_O, "Bytes of signs and of the rounded gradient."},
    {"signs", py_signs, METH_VARARGS, "Pack signs, and surrogate slopes in 8 bits."},
    {"forward", py_forward, METH_VARARGS, "Sums of a convolution of signs."},
    {"pool", py_pool, METH_VARARGS, "Largest of 2 x 2 sums."},
    {"moments", py_moments, METH_VARARGS, "Sums and squares of each channel."},
    {"affine", py_affine, METH_VARARGS, "y * gain + offset."},
    {"norm_sums", py_norm_sums, METH_VARARGS, "What a batch norm's gradient needs."},
    {"round", py_round, METH_VARARGS, "Round dL/dy at random, return its scale."},
    {"input_gradient", py_input_gradient, METH_VARARGS, "dL/dx."},
    {"weight_gradient", py_weight_gradient, METH_VARARGS, "dL/dw."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_train", "Binary convolutions trained in integers.", -1,
    methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__train(void) { return PyModule_Create(&definition); }
