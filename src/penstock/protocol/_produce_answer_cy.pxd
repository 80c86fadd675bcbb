# A named tuple without its constructor, which is Python, and without the detour over its class.
cdef extern from *:
    """
    static PyObject *penstock_named(PyObject *kind, PyObject *fields) {
        Py_ssize_t at, size = PyTuple_GET_SIZE(fields);
        PyObject *made = ((PyTypeObject *)kind)->tp_alloc((PyTypeObject *)kind, size);
        if (made == NULL) return NULL;
        for (at = 0; at < size; at++) {
            PyObject *field = PyTuple_GET_ITEM(fields, at);
            Py_INCREF(field);
            PyTuple_SET_ITEM(made, at, field);
        }
    #if PY_VERSION_HEX >= 0x030E0000
        ((PyTupleObject *)made)->ob_hash = -1; /* not known yet */
    #endif
        return made;
    }
    """
    object named "penstock_named" (object kind, tuple fields)
