/*
 * The sandbox that our programs set up for themselves: system calls that they
 * need no longer are refused from then on, in all threads of the process and in
 * all programs that it starts. It cannot be left.
 *
 * It is a second line of defence, which also a broker without systemd has. What
 * it refuses is in sandbox.c.
 */
#pragma once

struct error;

enum sandbox {
	/* fsdpd before it opens its event loop: only io_uring is refused. libuv
	 * uses it wherever it gets it, and aborts if it loses it later. */
	SANDBOX_LOOP,
	/* fsdpd, and with it fsdp-worker, beside a CUDA driver. The driver and
	 * NCCL need more calls than anybody has listed, so those are refused
	 * which they cannot need: with EPERM, and with a record in the kernel's
	 * audit log. */
	SANDBOX_BROKER_DEVICES,
	/* Both on a node without a driver: besides those, all is refused that
	 * is not on a list, with ENOSYS and a record. */
	SANDBOX_BROKER,
	/* fsdp-worker beside a CUDA driver: besides what its broker gave up, it
	 * starts no program. It is refused with EPERM and a record. */
	SANDBOX_WORKER_DEVICES,
	/* fsdp-worker on a node without a driver: nor does it fork, nor serve
	 * connections, as NCCL would. */
	SANDBOX_WORKER,
	/* fsdp-exporter, which has no file open but its sockets: all is refused
	 * that is not on a list, with EPERM and a line on stderr. */
	SANDBOX_EXPORTER,
};

/*
 * -EOPNOTSUPP: the program is built with a sanitizer, which needs what is
 * forbidden. Any other error is the kernel's. The process can go on without a
 * sandbox.
 */
int sandbox_enter(enum sandbox sandbox, struct error *err);
