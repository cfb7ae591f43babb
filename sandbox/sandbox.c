/*
 * Builds the filters with libseccomp. Names of system calls that the machine
 * does not have, such as iopl on aarch64, are skipped.
 */
#include "sandbox/sandbox.h"
#include "proto/error.h"
#include <errno.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#define N_ELEMENTS(array) (sizeof(array) / sizeof((array)[0]))

/* Calls that neither the broker nor the CUDA driver nor NCCL can need. */
static const char *const denied[] = {
	/* other processes */
	"process_vm_readv",
	"process_vm_writev",
	"ptrace",
	/* root directories, mounts, namespaces and host names */
	"chroot",
	"fsconfig",
	"fsmount",
	"fsopen",
	"fspick",
	"mount",
	"mount_setattr",
	"move_mount",
	"open_tree",
	"pivot_root",
	"setdomainname",
	"sethostname",
	"setns",
	"umount",
	"umount2",
	"unshare",
	/* the kernel, its clock, its keys and its other interfaces */
	"acct",
	"add_key",
	"adjtimex",
	"bpf",
	"clock_adjtime",
	"clock_settime",
	"delete_module",
	"fanotify_init",
	"finit_module",
	"init_module",
	"iopl",
	"ioperm",
	"io_uring_enter",
	"io_uring_register",
	"io_uring_setup",
	"kexec_file_load",
	"kexec_load",
	"keyctl",
	"lookup_dcookie",
	"modify_ldt",
	"open_by_handle_at",
	"perf_event_open",
	"personality",
	"quotactl",
	"quotactl_fd",
	"reboot",
	"request_key",
	"settimeofday",
	"swapoff",
	"swapon",
	"syslog",
	"userfaultfd",
	"vhangup",
};

/* Calls that any process with connections needs. */
static const char *const allowed[] = {
	/* memory */
	"brk",
	"madvise",
	"mmap",
	"mprotect",
	"mremap",
	"munmap",
	/* threads; see also allow_clone() */
	"exit",
	"exit_group",
	"futex",
	"getpid",
	"gettid",
	"membarrier",
	"prctl",
	"restart_syscall",
	"rseq",
	"sched_getaffinity",
	"sched_yield",
	"set_robust_list",
	"set_tid_address",
	"tgkill",
	/* signals and time */
	"clock_getres",
	"clock_gettime",
	"clock_nanosleep",
	"gettimeofday",
	"nanosleep",
	"rt_sigaction",
	"rt_sigprocmask",
	"rt_sigreturn",
	"rt_sigtimedwait",
	"sigaltstack",
	"time",
	/* the place of the broker's socket (socket_path.h) */
	"access",
	"faccessat",
	/* descriptors */
	"close",
	"dup",
	"epoll_create1",
	"epoll_ctl",
	"epoll_pwait",
	"epoll_wait",
	"eventfd2",
	"fcntl",
	"fstat",
	"lseek",
	"newfstatat",
	"pipe2",
	"poll",
	"ppoll",
	"pread64",
	"read",
	"readv",
	"statx",
	"write",
	"writev",
	/* sockets */
	"accept",
	"accept4",
	"connect",
	"getpeername",
	"getsockname",
	"getsockopt",
	"recvfrom",
	"recvmsg",
	"sendfile",
	"sendmsg",
	"sendto",
	"setsockopt",
	"shutdown",
	"socket",
	/* the process itself */
	"getegid",
	"geteuid",
	"getgid",
	"getrandom",
	"getuid",
	"prlimit64",
	"uname",
};

/* Calls that fsdpd and fsdp-worker on host memory need in addition. The tests
 * use most of them (as strace shows); other C libraries and machines use the
 * rest for the same purposes. */
static const char *const allowed_to_broker[] = {
	/* files */
	"faccessat2",
	"fallocate",
	"fchmod",
	"flock",
	"ftruncate",
	"getcwd",
	"getdents64",
	"ioctl",
	"lstat",
	"memfd_create",
	"open",
	"openat",
	"preadv",
	"preadv2",
	"pwrite64",
	"pwritev",
	"pwritev2",
	"readlink",
	"readlinkat",
	"stat",
	"unlink",
	"unlinkat",
	/* descriptors */
	"close_range",
	"dup2",
	"dup3",
	"epoll_pwait2",
	"pipe",
	"pselect6",
	"select",
	"socketpair",
	/* processes */
	"arch_prctl",
	"execve",
	"fork",
	"getppid",
	"kill",
	"pidfd_open",
	"pidfd_send_signal",
	"seccomp", /* fsdp-worker enters a stricter sandbox */
	"setpgid",
	"vfork",
	"wait4",
	"waitid",
	/* priorities and limits */
	"getcpu",
	"getpriority",
	"getrlimit",
	"sched_getscheduler",
	"sched_setaffinity",
	"sched_setattr",
	"setpriority",
	"setrlimit",
	"sysinfo",
	/* libnss_systemd, when a reload looks up a user or a group */
	"timerfd_create",
	"timerfd_settime",
};

/* Calls that fsdp-worker does not need. Its broker needs execve, to start
 * it. */
static const char *const denied_to_worker[] = {
	"execve",
	"execveat",
	/* These are allowed with a driver, because NCCL serves connections. */
	"accept",
	"accept4",
	"bind",
	"fork",
	"listen",
	"vfork",
};
#define N_DENIED_BESIDE_DRIVER 2

/* --- refusing with a line ------------------------------------------------- */

#if defined(__x86_64__)
#define SET_RESULT(context, r) ((context)->uc_mcontext.gregs[REG_RAX] = (r))
#elif defined(__aarch64__)
#define SET_RESULT(context, r)                                                 \
	((context)->uc_mcontext.regs[0] = (unsigned long long)(r))
#else
#error "which register has the result of a system call?"
#endif

/* The names of calls by their numbers. Calls of later kernels are reported by
 * number only. */
static const char *call_names[512];

static void learn_names(void)
{
	for (int i = 0; i < (int)(sizeof(call_names) / sizeof(*call_names));
	     i++)
		call_names[i] =
			seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, i);
}

/* The thread may have any lock, including that of malloc(). */
static void on_refusal(int number, siginfo_t *info, void *data)
{
	unsigned int call = (unsigned int)info->si_syscall;
	bool has_name = call < sizeof(call_names) / sizeof(*call_names) &&
			call_names[call];
	ucontext_t *context = data;
	char line[128];
	int n = snprintf(line, sizeof(line),
			 "%s: the sandbox refused the system call %u (%s)\n",
			 program_invocation_short_name, call,
			 has_name ? call_names[call] : "?");

	(void)number;
	(void)!write(STDERR_FILENO, line, (size_t)n);
	SET_RESULT(context, -EPERM);
}

static int handle_refusals(void)
{
	struct sigaction action = {.sa_flags = SA_SIGINFO | SA_RESTART};

	learn_names();
	action.sa_sigaction = on_refusal;
	return sigaction(SIGSYS, &action, NULL) < 0 ? -errno : 0;
}

/* --- filters -------------------------------------------------------------- */

static int add_rules(scmp_filter_ctx filter, uint32_t action,
		     const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		int call = seccomp_syscall_resolve_name(names[i]);
		int r = 0;

		/* negative: a call of other machines */
		if (call >= 0)
			r = seccomp_rule_add_exact(filter, action, call, 0);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Refuses these calls. The kernel logs each refusal. */
static int deny(scmp_filter_ctx filter, const char *const *names, size_t n)
{
	int r = seccomp_attr_set(filter, SCMP_FLTATR_CTL_LOG, 1);

	if (r == 0)
		r = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH,
				     SCMP_ACT_ERRNO(EPERM));
	if (r == 0)
		r = add_rules(filter, SCMP_ACT_ERRNO(EPERM), names, n);
	return r;
}

static int add_loop(scmp_filter_ctx filter)
{
	static const char *const setup = "io_uring_setup";

	return add_rules(filter, SCMP_ACT_ERRNO(EPERM), &setup, 1);
}

/* A filter cannot see the flags of clone3(), so that call must fail with
 * ENOSYS; then libraries use clone(). */
static int refuse_clone3(scmp_filter_ctx filter)
{
	return seccomp_rule_add_exact(filter, SCMP_ACT_ERRNO(ENOSYS),
				      SCMP_SYS(clone3), 0);
}

static const uint64_t namespaces[] = {
	CLONE_NEWCGROUP, CLONE_NEWIPC,  CLONE_NEWNET, CLONE_NEWNS,
	CLONE_NEWPID,    CLONE_NEWUSER, CLONE_NEWUTS,
};

/* Refuses clone() if it makes a namespace. */
static int deny_namespaces(scmp_filter_ctx filter)
{
	int r = refuse_clone3(filter);

	for (size_t i = 0; r == 0 && i < N_ELEMENTS(namespaces); i++)
		r = seccomp_rule_add_exact(
			filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
			SCMP_A0(SCMP_CMP_MASKED_EQ, namespaces[i],
				namespaces[i]));
	return r;
}

/* Allows clone() unless it makes a namespace (see also refuse_clone3()). */
static int allow_clone(scmp_filter_ctx filter)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < N_ELEMENTS(namespaces); i++)
		mask |= namespaces[i];
	return seccomp_rule_add_exact(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone),
				      1, SCMP_A0(SCMP_CMP_MASKED_EQ, mask, 0));
}

static int add_broker(scmp_filter_ctx filter)
{
	int r = deny(filter, denied, N_ELEMENTS(denied));

	if (r == 0)
		r = allow_clone(filter);
	if (r == 0)
		r = add_rules(filter, SCMP_ACT_ALLOW, allowed,
			      N_ELEMENTS(allowed));
	if (r == 0)
		r = add_rules(filter, SCMP_ACT_ALLOW, allowed_to_broker,
			      N_ELEMENTS(allowed_to_broker));
	return r;
}

static int add_devices(scmp_filter_ctx filter)
{
	int r = deny(filter, denied, N_ELEMENTS(denied));

	return r < 0 ? r : deny_namespaces(filter);
}

static int add_worker_devices(scmp_filter_ctx filter)
{
	return deny(filter, denied_to_worker, N_DENIED_BESIDE_DRIVER);
}

/* Allows clone() only to make threads. */
static int deny_forks(scmp_filter_ctx filter)
{
	int r = refuse_clone3(filter);

	return r < 0 ? r
		     : seccomp_rule_add_exact(
			       filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone),
			       1, SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
}

static int add_worker(scmp_filter_ctx filter)
{
	int r = deny(filter, denied_to_worker, N_ELEMENTS(denied_to_worker));

	return r < 0 ? r : deny_forks(filter);
}

static int add_exporter(scmp_filter_ctx filter)
{
	int r = handle_refusals();

	/* Libraries try to read optional files, such as /etc/localtime. These
	 * refusals are not reported. */
	if (r == 0)
		r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM),
				     SCMP_SYS(openat), 0);
	if (r == 0)
		r = refuse_clone3(filter);
	if (r == 0)
		r = allow_clone(filter);
	if (r == 0)
		r = add_rules(filter, SCMP_ACT_ALLOW, allowed,
			      N_ELEMENTS(allowed));
	return r;
}

/* For each sandbox: the action for calls without a rule, and the rules. */
static const struct {
	uint32_t others;
	int (*add)(scmp_filter_ctx filter);
} filters[] = {
	[SANDBOX_LOOP] = {SCMP_ACT_ALLOW, add_loop},
	[SANDBOX_BROKER_DEVICES] = {SCMP_ACT_ALLOW, add_devices},
	/* with ENOSYS libraries continue as on a kernel without the call */
	[SANDBOX_BROKER] = {SCMP_ACT_ERRNO(ENOSYS), add_broker},
	[SANDBOX_WORKER_DEVICES] = {SCMP_ACT_ALLOW, add_worker_devices},
	[SANDBOX_WORKER] = {SCMP_ACT_ALLOW, add_worker},
	[SANDBOX_EXPORTER] = {SCMP_ACT_TRAP, add_exporter},
};

static int load(enum sandbox sandbox)
{
	scmp_filter_ctx filter = seccomp_init(filters[sandbox].others);
	int r;

	if (!filter)
		return -ENOMEM;
	/* apply it to threads that are already running */
	r = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
	if (r == 0)
		r = filters[sandbox].add(filter);
	if (r == 0)
		r = seccomp_load(filter);
	seccomp_release(filter);
	return r;
}

/* --- entering ------------------------------------------------------------- */

#ifdef FSDP_TEST_POINTS
/* Tries the system call with the number that a test has set. */
static void try_call(void)
{
	const char *number = getenv("FSDP_SANDBOX_TRY");

	if (number)
		fprintf(stderr, "%s: tried the system call %s: %s\n",
			program_invocation_short_name, number,
			syscall(strtol(number, NULL, 10), 0, 0, 0, 0, 0, 0) < 0
				? strerror(errno)
				: "done");
}
#else
static void try_call(void)
{
}
#endif

int sandbox_enter(enum sandbox sandbox, struct error *err)
{
	int r;

#ifdef FSDP_NO_SANDBOX
	return error_set(err, -EOPNOTSUPP,
			 "no sandbox: sanitizers need what it forbids");
#endif
	r = load(sandbox);
	if (r < 0)
		return error_errno(err, r,
				   "cannot give up system calls (seccomp)");
	try_call();
	return 0;
}
