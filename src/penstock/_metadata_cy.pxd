# For compiled code: where a record is.
cdef extern from "Python.h":
    ctypedef struct PyTypeObject
    object PyType_GenericAlloc(PyTypeObject* type, Py_ssize_t size)
    void PyTuple_SET_ITEM(object made, Py_ssize_t at, object item)  # takes the reference over
    void Py_INCREF(object item)

cdef extern from *:
    """
    /* Since Python 3.14 a tuple keeps its hash, and -1 until it is asked for. PyType_GenericAlloc leaves 0 there. */
    static inline void penstock_forget_hash(PyObject *made) {
    #if PY_VERSION_HEX >= 0x030E0000
        ((PyTupleObject *)made)->ob_hash = -1;
    #else
        (void)made;
    #endif
    }
    """
    void penstock_forget_hash(object made)

cdef new_metadata(topic, partition, offset, timestamp, key_size, value_size)
