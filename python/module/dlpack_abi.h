/*
 * DLPack's own structs, of its C ABI.
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
	int64_t *shape, *strides; /* elements */
	uint64_t byte_offset;     /* 0: older torch ignores it */
};

#define DL_LEGACY_NAME "dltensor" /* of a capsule of a struct dl_managed */

struct dl_managed {
	struct dl_tensor tensor;
	void *context;
	void (*deleter)(struct dl_managed *self);
};

#define DL_EXCHANGE_NAME "dlpack_exchange_api" /* of a struct dl_exchange */

/* How the objects of one type show their tensors without a call of Python. */
struct dl_exchange {
	uint32_t major, minor;
	const struct dl_exchange *older;
	void (*allocate)(void); /* not used here, like the next two */
	void (*take)(void);
	void (*make)(void);
	/* The tensor of an object, for as long as that stays as it is. -1, with
	 * an exception. It may be NULL. */
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
