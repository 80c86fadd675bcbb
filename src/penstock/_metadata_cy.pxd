# For compiled code: where a record is.
cdef extern from "Python.h":
    ctypedef struct PyTypeObject
    object PyType_GenericAlloc(PyTypeObject* type, Py_ssize_t size)
    void PyTuple_SET_ITEM(object made, Py_ssize_t at, object item)  # takes the reference over
    void Py_INCREF(object item)

cdef new_metadata(topic, partition, offset, timestamp, key_size, value_size)
