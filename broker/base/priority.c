#include "broker/base/priority.h"
#include "proto/error.h"
#include <errno.h>
#include <linux/sched.h>
#include <linux/sched/types.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The shortest slice that Linux allows. Kernels before 6.12 have one for all
 * threads. */
#define SLICE_NS 100000

int priority_set(struct error *err)
{
	struct sched_attr attr = {
		.size = sizeof(attr),
		.sched_policy = SCHED_NORMAL,
		.sched_flags = SCHED_FLAG_RESET_ON_FORK,
		.sched_nice = getpriority(PRIO_PROCESS, 0),
		.sched_runtime = SLICE_NS,
	};

	/* If the process that started the broker chose another policy, it is
	 * kept. */
	if (attr.sched_nice >= 0 &&
	    syscall(SYS_sched_getscheduler, 0) != SCHED_NORMAL)
		return 0;
	/* If a longer slice stays, that is no error. But if the negative nice
	 * stays for all threads, that is one. */
	if (syscall(SYS_sched_setattr, 0, &attr, 0) == 0 ||
	    attr.sched_nice >= 0)
		return 0;
	return error_set(err, -errno,
			 "cannot limit nice %d to one thread: %s; other "
			 "threads and fsdp-worker run with it, too",
			 attr.sched_nice, strerrordesc_np(errno));
}
