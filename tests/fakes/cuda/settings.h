/*
 * Settings of tests, which are environment variables and read at the first
 * call. An invalid variable, or an unknown FAKECUDA_ name, ends the process
 * with a sentence: a test with a typing error must not pass.
 *
 *   FAKECUDA_DIR             folder that processes of one "machine" share:
 *                            memory, quotas, exclusive modes, IPC. Default: a
 *                            folder of this user in /dev/shm
 *   FAKECUDA_HOME            a home: the driver opens the files that real ones
 *                            open, keeps a cache there, and fails if it may
 *                            not (openings.h). Default: it opens none
 *   FAKECUDA_DEVICES         number of devices, default 2
 *   FAKECUDA_MEM_MB          memory of each device, default 4096
 *   FAKECUDA_CONTEXT_MB      part of it that every context uses, default 0
 *   FAKECUDA_COMPUTE_MODE    default, exclusive_process or prohibited
 *   FAKECUDA_DRIVER_VERSION  default 13000
 *   FAKECUDA_WITHOUT         features that devices lack, with commas: vmm
 *                            posix_fd rdma memops ipc_events
 *                            readonly_register
 *   FAKECUDA_WITH            features that they have besides:
 *                            readonly_register, which an H200 has and, by
 *                            default, those of the fake lack
 *   FAKECUDA_MIG             1: devices are instances of one GPU in MIG mode;
 *                            a process sees one (CUDA_VISIBLE_DEVICES)
 *   FAKECUDA_DELAY_US        work is delayed by up to this time, default 200
 *   FAKECUDA_COPY_US         a copy between a device and pinned memory takes
 *                            this additional time, default 0
 *   FAKECUDA_SEED            seed of the delays, default 1
 *   FAKECUDA_SYNC            1: calls for which a driver may synchronise do so
 *                            (allocating, freeing, unmapping, setting access),
 *                            with all streams of the process. Default 0: they
 *                            do not, and work is a fault if its memory was
 *                            freed or mapped, or its access changed, meanwhile
 *   FAKECUDA_QUEUES          number of hardware queues of a process on each
 *                            device, which its streams share (queue.h), unless
 *                            CUDA_DEVICE_MAX_CONNECTIONS sets it, as for a
 *                            driver, whose default is 8. Default 0: each
 *                            stream has its own
 *   FAKECUDA_ONE_CALLBACK    1: host functions run one after another
 *   FAKECUDA_FAIL            calls that fail, see fault.h
 *   FAKECUDA_COUNT           1: count calls in $FAKECUDA_DIR/calls.PID (call.h)
 *   FAKECUDA_LEAKS           1: report at exit what was not freed, on stderr
 *   FAKECUDA_PLAIN           the settings above, "DEVICES=1;WITHOUT=rdma". All
 *                            other variables are ignored then, also those of
 *                            the fake NCCL, as a real driver ignores them
 *
 * CUDA_VISIBLE_DEVICES and CUDA_MPS_PIPE_DIRECTORY have the same meaning as for
 * a driver. A file $FAKECUDA_DIR/lost.N, which any process may make at any
 * time, means that device N has fallen off the bus (device.h).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define FAKE_MAX_DEVICES 16

enum feature {
	FEATURE_VMM,
	FEATURE_POSIX_FD,
	FEATURE_RDMA,
	FEATURE_MEMOPS,
	FEATURE_IPC_EVENTS,
	FEATURE_READONLY_REGISTER,
	N_FEATURES,
};

struct settings {
	const char *dir; /* NULL for the default */
	const char *fail;
	const char *home; /* NULL if no files are opened */
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

/* Returns the settings, which are read once. Thread-safe. */
const struct settings *settings(void);

/* Ends the process with a sentence about an invalid variable. */
__attribute__((noreturn, format(printf, 1, 2))) void
settings_refuse(const char *format, ...);
