/* What the files of the Python extension share.
 * Limited API of Python 3.11, so that one build serves all later versions. */
#ifndef FEDBNN_PYMODULE_H
#define FEDBNN_PYMODULE_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include "train.h"

typedef unsigned long long address;
#define AT(type, number) ((type *)(uintptr_t)(number))

/* The kernel set of this name; NULL and a ValueError if this CPU has none. */
const train_kernels *kernels_of(const char *name);
/* None, or a MemoryError. */
PyObject *finish(int done);

/* Of pyweights.c. */
PyObject *py_mix(PyObject *self, PyObject *args);
PyObject *py_mix_gradient(PyObject *self, PyObject *args);
PyObject *py_turn(PyObject *self, PyObject *args);

#endif
