/*
 * Hellos: they tell which process is at the other end of a connection.
 *
 * A hello asks for a new session, or for an earlier one of the same process.
 * Before the client gets either (admission.h), the broker opens a pidfd and
 * makes sure that it refers to the process that connected. SO_PEERPIDFD returns
 * such a pidfd. Without that option (Linux before 6.5) the pid of SO_PEERCRED
 * is opened and then verified by a nonce that the client must send back with
 * SCM_CREDENTIALS: the process that replied was alive after the pidfd was
 * opened, so the pidfd refers to it.
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
	/* owned until the session takes it; -1: not open */
	int pidfd;
	bool is_challenged;
	uint64_t nonce;
	/* The hello and its fds, while the proof is pending. The fds are owned;
	 * -1 means none. */
	struct hello_request request;
	int fds[2];
};

/* Prepare for the hello of a connection. `sock_fd` and `cred` are borrowed.
 * hello_deinit() closes the pidfd and the fds that no session has taken. */
void hello_init(struct hello *hello, struct sessions *sessions, int sock_fd,
		const struct ucred *cred);
void hello_deinit(struct hello *hello);

/* Close the fds that came with the hello. */
void hello_drop_fds(struct hello *hello);

enum hello_outcome {
	/* `pidfd` refers to the process that sent `request` */
	HELLO_VERIFIED = 0,
	HELLO_CHALLENGED = 1, /* the caller sends `nonce` to the client */
};

/*
 * Handle a frame of a connection without a session, which is the hello or the
 * reply to the challenge. Takes the fds out of the frame. Returns an enum
 * hello_outcome; if it is negative, the client is refused, and the caller
 * closes the connection.
 */
int hello_on_frame(struct hello *hello, struct frame *frame,
		   const struct frame_sender *sender, struct error *err);
