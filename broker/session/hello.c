#include "broker/session/hello.h"
#include "broker/session/sessions.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/frame.h"
#include <errno.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5; not in the headers of 6.1 */
#endif

void hello_init(struct hello *hello, struct sessions *sessions, int sock_fd,
		const struct ucred *cred)
{
	*hello = (struct hello){
		.sessions = sessions,
		.sock_fd = sock_fd,
		.cred = cred,
		.pidfd = -1,
		.fds = {-1, -1},
	};
}

void hello_drop_fds(struct hello *hello)
{
	for (int i = 0; i < 2; i++) {
		if (hello->fds[i] >= 0)
			closer_put(&hello->sessions->base->closer,
				   hello->cred->uid, hello->fds[i]);
		hello->fds[i] = -1;
	}
}

void hello_deinit(struct hello *hello)
{
	hello_drop_fds(hello);
	if (hello->pidfd >= 0)
		close(hello->pidfd);
	hello->pidfd = -1;
}

/* --- the process --------------------------------------------------------- */

static int get_peer_pidfd(int sock_fd)
{
	socklen_t size = sizeof(int);
	int pidfd = -1;
	int r = failpoint_fail("peer.pidfd");

	if (r < 0)
		return r;
	if (getsockopt(sock_fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) < 0)
		return -errno;
	return pidfd;
}

/* Open a pidfd of the client. `*ret_is_proven` tells whether the pidfd
 * certainly refers to the client, because the kernel recorded the process when
 * it connected. */
static int open_pidfd(struct hello *hello, bool *ret_is_proven,
		      struct error *err)
{
	int pidfd = get_peer_pidfd(hello->sock_fd);

	*ret_is_proven = true;
	if (pidfd == -ENOPROTOOPT) {
		*ret_is_proven = false;
		pidfd = (int)syscall(SYS_pidfd_open, hello->cred->pid, 0);
		if (pidfd < 0)
			pidfd = -errno;
	}
	if (pidfd < 0)
		return error_errno(err, pidfd,
				   "cannot open a pidfd of process %d",
				   (int)hello->cred->pid);
	hello->pidfd = pidfd;
	return 0;
}

static int check_sender(const struct hello *hello,
			const struct frame_sender *sender, struct error *err)
{
	const struct ucred *cred = hello->cred;

	if (cred->uid == OVERFLOW_UID)
		return error_set(err, -EPERM,
				 "uid %d stands for all users without a "
				 "mapping in the broker's user namespace; "
				 "connect as a user that is mapped there",
				 OVERFLOW_UID);
	if (cred->pid <= 0)
		return error_set(err, -EPERM,
				 "the connecting process is not visible in the "
				 "broker's pid namespace; share it");
	if (sender->pid != cred->pid)
		return error_set(err, -EPERM,
				 "process %d connected but process %d says "
				 "hello; connect in the process that uses the "
				 "connection",
				 (int)cred->pid, (int)sender->pid);
	return 0;
}

static int challenge(struct hello *hello, struct error *err)
{
	if (getrandom(&hello->nonce, sizeof(hello->nonce), 0) !=
	    (ssize_t)sizeof(hello->nonce))
		return error_errno(err, -errno, "cannot get random bytes");
	hello->is_challenged = true;
	return HELLO_CHALLENGED;
}

/* --- frames -------------------------------------------------------------- */

static int check_request(const struct hello_request *request,
			 const struct frame *frame, struct error *err)
{
	uint16_t n_fds = request->is_reconnect ? 2 : 0;

	if (request->major != PROTOCOL_MAJOR)
		return error_set(err, -EPROTO,
				 "the client speaks protocol %u.%u, this "
				 "broker (version %s) speaks %d.%d; install "
				 "the same version of both",
				 request->major, request->minor, FSDP_VERSION,
				 PROTOCOL_MAJOR, PROTOCOL_MINOR);
	if (frame->n_fds != n_fds)
		return error_set(err, -EPROTO,
				 "a hello has %u descriptors instead of %u",
				 frame->n_fds, n_fds);
	return 0;
}

static int on_request(struct hello *hello, struct frame *frame,
		      const struct frame_sender *sender, struct error *err)
{
	struct request request;
	bool is_proven = false;
	int r;

	if (frame->kind != MESSAGE_HELLO)
		return error_set(err, -EPROTO,
				 "a connection begins with a hello, not with a "
				 "request of kind %u",
				 frame->kind);
	r = request_decode(frame->kind, frame->body, frame->body_size, &request,
			   err);
	if (r < 0)
		return r;
	hello->request = request.hello;
	request_deinit(&request);
	r = check_request(&hello->request, frame, err);
	if (r < 0)
		return r;
	r = check_sender(hello, sender, err);
	if (r < 0)
		return r;
	r = open_pidfd(hello, &is_proven, err);
	if (r < 0)
		return r;
	for (uint16_t i = 0; i < frame->n_fds; i++) {
		hello->fds[i] = frame->fds[i];
		frame->fds[i] = -1;
	}
	return is_proven ? HELLO_VERIFIED : challenge(hello, err);
}

static int check_proof(const struct hello *hello, uint64_t nonce,
		       const struct frame_sender *sender, struct error *err)
{
	struct pollfd pollfd = {.fd = hello->pidfd, .events = POLLIN};
	int r;

	r = check_sender(hello, sender, err);
	if (r < 0)
		return r;
	if (nonce != hello->nonce)
		return error_set(
			err, -EPERM,
			"the reply to the challenge has a wrong nonce");
	if (poll(&pollfd, 1, 0) != 0)
		return error_set(err, -ESRCH, "process %d has exited",
				 (int)hello->cred->pid);
	return 0;
}

/*
 * The reply to the challenge carries the sender's pid, as the kernel saw it,
 * and a nonce that was made after our pidfd was opened. If the process of the
 * pidfd has still not exited, no other process can have had this pid in
 * between.
 */
static int on_proof(struct hello *hello, const struct frame *frame,
		    const struct frame_sender *sender, struct error *err)
{
	struct request request;
	uint64_t nonce;
	int r;

	if (frame->kind != MESSAGE_CHALLENGE || frame->n_fds > 0)
		return error_set(err, -EPROTO,
				 "the client did not reply to the challenge");
	r = request_decode(frame->kind, frame->body, frame->body_size, &request,
			   err);
	if (r < 0)
		return r;
	nonce = request.challenge.nonce;
	request_deinit(&request);
	r = check_proof(hello, nonce, sender, err);
	if (r < 0)
		return r;
	hello->is_challenged = false;
	return HELLO_VERIFIED;
}

int hello_on_frame(struct hello *hello, struct frame *frame,
		   const struct frame_sender *sender, struct error *err)
{
	if (hello->is_challenged)
		return on_proof(hello, frame, sender, err);
	return on_request(hello, frame, sender, err);
}
