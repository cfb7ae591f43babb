/*
 * What tests set, all of it by environment variables, read at the first call.
 * What cannot be understood (also a FAKECUDA_ name that is none) ends the
 * process with a sentence: a test with a typing error must not pass.
 *
 *   FAKECUDA_DIR             folder that processes of one "machine" share:
 *                            memory, quotas, exclusive modes, IPC. Default: a
 *                            folder of this user's in /dev/shm
 *   FAKECUDA_DEVICES         number of devices, default 2
 *   FAKECUDA_MEM_MB          memory of each device, default 4096
 *   FAKECUDA_CONTEXT_MB      of it, what every context takes, default 0
 *   FAKECUDA_COMPUTE_MODE    default, exclusive_process or prohibited
 *   FAKECUDA_DRIVER_VERSION  default 13000
 *   FAKECUDA_WITHOUT         list, by commas, of what devices cannot do: vmm
 *                            posix_fd fabric imex rdma memops ipc_events
 *                            readonly_register reexport
 *   FAKECUDA_WITH            list of what they can do: readonly_register, which
 *                            GPUs on a bus of their own cannot, and by default
 *                            the double's cannot either
 *   FAKECUDA_MIG             1: devices are instances of one GPU in MIG mode;
 *                            a process sees one (CUDA_VISIBLE_DEVICES)
 *   FAKECUDA_DELAY_US        work is delayed by up to so much, default 200
 *   FAKECUDA_COPY_US         a copy between a device and pinned memory takes so
 *                            long, besides, default 0
 *   FAKECUDA_SEED            of the delays, default 1
 *   FAKECUDA_SYNC            1: what a driver may synchronise does (allocating,
 *                            freeing, unmapping, setting access), with all
 *                            streams of the process. Default 0: it does not,
 *                            and work that uses what is gone, or was mapped
 *                            or given another access meanwhile, is a fault
 *   FAKECUDA_QUEUES          number of hardware queues of a process on each
 *                            device, which its streams share (queue.h), unless
 *                            CUDA_DEVICE_MAX_CONNECTIONS has another, as for a
 *                            driver, whose default is 8. Default 0: each stream
 *                            has its own
 *   FAKECUDA_ONE_CALLBACK    1: host functions run one after another
 *   FAKECUDA_FAIL            calls that fail: see fault.h
 *   FAKECUDA_COUNT           1: count calls in $FAKECUDA_DIR/calls.PID (call.h)
 *   FAKECUDA_LEAKS           1: say at exit what was not freed, to stderr
 *   FAKECUDA_PLAIN           the settings above, "DEVICES=1;WITHOUT=rdma". All
 *                            other variables are ignored then, those of NCCL's
 *                            double too, as a real driver ignores them
 *
 * Besides: CUDA_VISIBLE_DEVICES and CUDA_MPS_PIPE_DIRECTORY, as for a driver;
 * and a file $FAKECUDA_DIR/lost.N, made at any time by anybody, that means that
 * device N has fallen off the bus (device.h).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define FAKE_MAX_DEVICES 16

enum feature {
	FEATURE_VMM,
	FEATURE_POSIX_FD,
	FEATURE_FABRIC, /* the attribute */
	FEATURE_IMEX,   /* and what it needs */
	FEATURE_RDMA,
	FEATURE_MEMOPS,
	FEATURE_IPC_EVENTS,
	FEATURE_READONLY_REGISTER,
	FEATURE_REEXPORT, /* of imported memory */
	N_FEATURES,
};

struct settings {
	const char *dir; /* NULL: the default */
	const char *fail;
	uint64_t n_devices;
	uint64_t memory_mb, context_mb;
	uint64_t compute_mode; /* a CUcomputemode */
	uint64_t driver_version;
	uint64_t delay_us, copy_us, seed;
	uint64_t n_queues;
	bool has[N_FEATURES];
	bool is_mig, has_one_callback;
	bool does_sync, does_count, does_report_leaks;
};

/* Read once; thread-safe. */
const struct settings *settings(void);

/* End the process over a variable that makes no sense. */
__attribute__((noreturn, format(printf, 1, 2))) void
settings_refuse(const char *format, ...);
