/* The Python extension fedbnn_core.packed._native: thin, checks buffer sizes only.
 * Limited API of Python 3.11, so that one build serves all later versions. */
#if !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L
#endif
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include "fbnn.h"

#include <time.h>

static const char CAPSULE[] = "fedbnn_core.packed._native.model";

static void close_model(PyObject *capsule) {
    fbnn_close(PyCapsule_GetPointer(capsule, CAPSULE));
}

static PyObject *py_kernels(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    PyObject *list = PyList_New(0);
    for (const char *const *name = fbnn_kernel_names(); list && *name; name++) {
        PyObject *text = PyUnicode_FromString(*name);
        if (!text || PyList_Append(list, text) != 0) Py_CLEAR(list);
        Py_XDECREF(text);
    }
    return list;
}

/* open(file, kernel, threads) -> model */
static PyObject *py_open(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer file;
    fbnn_options options;
    if (!PyArg_ParseTuple(args, "y*sI", &file, &options.kernel, &options.threads))
        return NULL;
    fbnn_model *model;
    fbnn_status status = fbnn_open(file.buf, (size_t)file.len, &options, &model);
    PyBuffer_Release(&file);
    if (status != FBNN_OK) {
        PyErr_SetString(status == FBNN_ERROR_MEMORY ? PyExc_MemoryError
                                                    : PyExc_ValueError,
                        fbnn_error_text(status));
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(model, CAPSULE, close_model);
    if (!capsule) fbnn_close(model);
    return capsule;
}

/* describe(model) -> dict */
static PyObject *py_describe(PyObject *self, PyObject *capsule) {
    (void)self;
    fbnn_model *model = PyCapsule_GetPointer(capsule, CAPSULE);
    if (!model) return NULL;
    fbnn_info i = fbnn_describe(model);
    return Py_BuildValue("{s:s,s:K,s:K,s:K}", "kernel", i.kernel, "activation_bytes",
                         (unsigned long long)i.activation_bytes, "weight_bytes",
                         (unsigned long long)i.weight_bytes, "macs",
                         (unsigned long long)i.macs);
}

/* logits(model, images, normalized, n, out): images of n * h * w * c uint8 or, if
 * normalized, float32; out has room for n * classes float32. */
static PyObject *py_logits(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    Py_buffer images, out;
    int normalized;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "Oy*pnw*", &capsule, &images, &normalized, &n, &out))
        return NULL;
    PyObject *result = NULL;
    fbnn_model *model = PyCapsule_GetPointer(capsule, CAPSULE);
    if (!model) goto done;
    fbnn_info i = fbnn_describe(model);
    size_t values = (size_t)n * i.height * i.width * i.channels;
    if (n < 0 || (size_t)images.len != values * (normalized ? sizeof(float) : 1) ||
        (size_t)out.len != (size_t)n * i.classes * sizeof(float)) {
        PyErr_SetString(PyExc_ValueError, "buffer sizes do not fit the model");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    if (normalized)
        fbnn_logits_normalised(model, images.buf, (size_t)n, out.buf);
    else
        fbnn_logits(model, images.buf, (size_t)n, out.buf);
    Py_END_ALLOW_THREADS
    result = Py_None;
    Py_INCREF(result);
done:
    PyBuffer_Release(&images);
    PyBuffer_Release(&out);
    return result;
}

/* preactivations(model, image, operation) -> bytes of int32 */
static PyObject *py_preactivations(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule, *result = NULL;
    Py_buffer pixels;
    unsigned operation;
    if (!PyArg_ParseTuple(args, "Oy*I", &capsule, &pixels, &operation)) return NULL;
    fbnn_model *model = PyCapsule_GetPointer(capsule, CAPSULE);
    if (!model) goto done;
    fbnn_info i = fbnn_describe(model);
    if ((size_t)pixels.len !=
        (size_t)i.height * i.width * i.channels * sizeof(float)) {
        PyErr_SetString(PyExc_ValueError, "buffer sizes do not fit the model");
        goto done;
    }
    size_t n = fbnn_preactivations(model, NULL, operation, NULL);
    result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n * sizeof(int32_t)));
    if (result && n)
        fbnn_preactivations(model, pixels.buf, operation,
                            (int32_t *)(void *)PyBytes_AsString(result));
done:
    PyBuffer_Release(&pixels);
    return result;
}

/* Seconds that a chain of 2^20 dependent additions takes: one cycle each on the CPUs
 * at hand. None where it is not known how to keep a compiler from shortening it. */
static PyObject *py_cycle_chain(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(_WIN32)
    struct timespec begin, end;
    unsigned long x = 0, one = 1; /* newer CPUs add constants in no time at all */
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < 1 << 16; i++) {
#if defined(__x86_64__)
#define STEP "add %1, %0\n\t"
#else
#define STEP "add %0, %0, %1\n\t"
#endif
#define FOUR STEP STEP STEP STEP
        __asm__ volatile(FOUR FOUR FOUR FOUR : "+r"(x) : "r"(one));
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return PyFloat_FromDouble((double)(end.tv_sec - begin.tv_sec) +
                              1e-9 * (double)(end.tv_nsec - begin.tv_nsec));
#else
    Py_RETURN_NONE;
#endif
}

static PyMethodDef methods[] = {
    {"kernels", py_kernels, METH_NOARGS, "Names of the usable kernels, fastest first."},
    {"open", py_open, METH_VARARGS, "open(file, kernel, threads) -> model"},
    {"describe", py_describe, METH_O, "describe(model) -> dict"},
    {"logits", py_logits, METH_VARARGS, "logits(model, images, normalized, n, out)"},
    {"preactivations", py_preactivations, METH_VARARGS,
     "preactivations(model, image, operation) -> bytes of int32"},
    {"cycle_chain", py_cycle_chain, METH_NOARGS,
     "cycle_chain() -> seconds of 2**20 dependent additions, or None"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Packed 1-bit network runtime.", -1, methods,
    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&definition); }
