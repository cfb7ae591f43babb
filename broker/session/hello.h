/*
 * Hellos: which process is at the other end of a connection.
 *
 * A hello asks for a new session, or for an earlier one of the same process.
 * Before it gets either (admission.h), the broker holds a pidfd that is
 * certainly of the process that connected. SO_PEERPIDFD gives it. Without that
 * option (Linux before 6.5) the pid of SO_PEERCRED is opened and then verified
 * by a nonce that the client must send back with SCM_CREDENTIALS: the process
 * that replied was alive after the pidfd was opened, so the pidfd refers to it.
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define OVERFLOW_UID 65534

struct sessions;
struct error;
struct frame;
struct frame_sender;

struct hello {
	struct sessions *sessions;
	int sock_fd;              /* borrowed */
	const struct ucred *cred; /* borrowed: of the process that connected */
	int pidfd;                /* owned until the session takes it; -1 */
	bool is_challenged;
	uint64_t nonce;
	/* While the proof is pending: the hello and its fds, owned; -1. */
	struct hello_request request;
	int fds[2];
};

void hello_init(struct hello *hello, struct sessions *sessions, int sock_fd,
		const struct ucred *cred);
void hello_deinit(struct hello *hello);

/* Close the fds that came with the hello. */
void hello_drop_fds(struct hello *hello);

enum hello_outcome {
	HELLO_VERIFIED = 0,   /* `request` and `pidfd` are the process's */
	HELLO_CHALLENGED = 1, /* `nonce` is to be sent to the client */
};

/*
 * Handle a frame of a connection without a session: the hello, or the reply to
 * the challenge. Takes the fds out of the frame. Negative: the client is
 * refused, and the connection is to be closed.
 */
int hello_on_frame(struct hello *hello, struct frame *frame,
		   const struct frame_sender *sender, struct error *err);
