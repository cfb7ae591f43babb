/*
 * The structs of DLPack's C ABI.
 */
#pragma once
#include <stdint.h>

enum { DEVICE_CPU = 1, DEVICE_CUDA = 2 };
enum {
	CODE_INT = 0,
	CODE_UINT = 1,
	CODE_FLOAT = 2,
	CODE_BFLOAT = 4,
	CODE_COMPLEX = 5,
	CODE_BOOL = 6,
	CODE_F8_E4M3FN = 10,
	CODE_F8_E5M2 = 12
};

struct dl_device {
	int32_t type, id;
};

struct dl_dtype {
	uint8_t code, bits;
	uint16_t lanes;
};

struct dl_tensor {
	void *data;
	struct dl_device device;
	int32_t n_dims;
	struct dl_dtype dtype;
	int64_t *shape, *strides; /* strides in elements */
	uint64_t byte_offset; /* 0, because older versions of torch ignore it */
};

/* name of a capsule with a struct dl_managed */
#define DL_LEGACY_NAME "dltensor"

struct dl_managed {
	struct dl_tensor tensor;
	void *context;
	void (*deleter)(struct dl_managed *self);
};

/* name of a capsule with a struct dl_exchange */
#define DL_EXCHANGE_NAME "dlpack_exchange_api"

/* Functions by which the objects of one type show their tensors without a call
 * of Python. */
struct dl_exchange {
	uint32_t major, minor;
	const struct dl_exchange *older;
	void (*allocate)(void); /* this and the next two are not used here */
	void (*take)(void);
	void (*make)(void);
	/* Returns the tensor of an object. It is valid as long as the object
	 * does not change. Returns -1 with an exception set on failure. The
	 * member may be NULL. */
	int (*look)(void *object, struct dl_tensor *ret);
};

#define FLAG_READ_ONLY 1u

struct dl_versioned {
	uint32_t major, minor;
	void *context;
	void (*deleter)(struct dl_versioned *self);
	uint64_t flags;
	struct dl_tensor tensor;
};
