/*
 * The sandbox that our programs enter: from then on, system calls that they do
 * not need are refused, in all threads of the process and in all programs that
 * it starts. It cannot be left.
 *
 * It is a second line of defence, which also protects a broker without systemd.
 * sandbox.c lists the calls.
 */
#pragma once

struct error;

enum sandbox {
	/* For fsdpd before it opens its event loop. Only io_uring is refused:
	 * libuv uses it if it can, and aborts if it loses it later. */
	SANDBOX_LOOP,
	/* For fsdpd, and so for fsdp-worker, with a CUDA driver. No list has
	 * all calls that the driver and NCCL need, so only calls that they
	 * cannot need are refused, with EPERM and a record in the kernel's
	 * audit log. clone3 is refused with ENOSYS, since it could make
	 * namespaces; libraries use clone then. */
	SANDBOX_BROKER_DEVICES,
	/* For both on a node without a driver. In addition, all calls that are
	 * not on a list are refused, with ENOSYS and a record. */
	SANDBOX_BROKER,
	/* For fsdp-worker with a CUDA driver. In addition to the sandbox of its
	 * broker, it cannot start programs, which is refused with EPERM and a
	 * record. */
	SANDBOX_WORKER_DEVICES,
	/* For fsdp-worker on a node without a driver. In addition, it cannot
	 * fork, nor serve connections, as NCCL would. */
	SANDBOX_WORKER,
	/* For fsdp-exporter, which has no open files but its sockets. All calls
	 * that are not on a list are refused, with EPERM and a line on
	 * stderr. */
	SANDBOX_EXPORTER,
};

/*
 * Returns -EOPNOTSUPP if the program is built with a sanitizer, which needs
 * forbidden calls. Other errors are those of the kernel. The process can
 * continue without a sandbox.
 */
int sandbox_enter(enum sandbox sandbox, struct error *err);
