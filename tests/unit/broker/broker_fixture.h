/*
 * A broker in the test's own process, for tests of its parts: catalog, table,
 * accounts and pools are real, but the loop runs only while a request waits for
 * something. Clients are real sessions of this process with any uid; their
 * requests go through verb_dispatch() and a socket pair.
 */
#pragma once
#include "broker/broker.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/collect.h"
#include "broker/tensor/evict.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/index.h"
#include "broker/tensor/name.h"
#include "broker/tensor/place.h"
#include "broker/tensor/prefix.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/ticket.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "shm/memfd.h"
#include "tests/lib/check.h"
#include "tests/unit/broker/loop_fixture.h"
#include "tests/unit/broker/parts_fixture.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Checks a call that has an error and must succeed. */
void must(int r, const struct error *err);

/* A broker with little memory and without clients. */
struct broker *broker_make(void);

/* --- clients -------------------------------------------------------------- */

struct client {
	struct broker *broker;
	struct session *session;
	struct peer peer;
	struct refs refs;              /* mapped by the client */
	int sock_fd;                   /* the client's end of the socket pair */
	uint64_t number;               /* of the last request */
	char sentence[ERROR_MSG_SIZE]; /* of the last refusal */
	uint32_t n_fds;                /* of the last reply */
};

void client_open(struct client *client, struct broker *self, uint32_t uid,
		 uint64_t budget);

/* Do the same for a child process, which does nothing until it is killed. */
pid_t client_open_child(struct client *client, struct broker *self,
			uint32_t uid);

/* Returns when the child is dead; the loop then ends its session. */
void kill_child(struct client *client, pid_t child);

/* The broker of the test, and clients of uid 1000 and 1001, which
 * broker_set_up() makes. */
extern struct broker *broker;
extern struct client alice, bob;

void broker_set_up(void);

/* End the session as if its process had died. */
void client_close(struct client *client);

/* Send a request with a descriptor, which is consumed; -1 sends none. The reply
 * may come later. */
void client_send_fd(struct client *client, const struct request *request,
		    uint64_t number, int fd);

void client_send(struct client *client, const struct request *request,
		 uint64_t number);

/* Receive the next reply if there is one, and store its code in `ret_code`. */
bool client_recv(struct client *client, struct reply *ret, int *ret_code);

/* Send a request and wait. Returns the code. The caller frees the reply. */
int client_call(struct client *client, const struct request *request,
		struct reply *ret);

/* Do the same where only the code matters. */
int client_ask(struct client *client, const struct request *request);

void client_acquire(struct client *client, const struct slot_ref *ref);

/* Release without a request. Returns true if the broker's doorbell must be
 * rung. */
bool client_release(struct client *client, const struct slot_ref *ref);

/* --- requests ------------------------------------------------------------- */

struct alloc_item item_of(uint64_t size);

int client_alloc_item(struct client *client, struct alloc_item *item,
		      uint32_t mode, uint64_t bundle, int32_t timeout_ms,
		      struct slot_ref *ret);

struct slot_ref client_alloc(struct client *client, uint64_t size);

/* Returns the version, or a negative errno. */
int64_t client_publish(struct client *client, const struct slot_ref *ref,
		       const char *name, uint32_t flags, uint64_t ttl_ms);

int client_get(struct client *client, const char *name, struct slot_ref *ret);

int client_release_n(struct client *client, const struct slot_ref *ref,
		     uint32_t n);

int client_remove(struct client *client, const char *name);

/* Publish a tensor under the name and release it, so that only the name keeps
 * it. */
struct slot_ref client_put(struct client *client, const char *name,
			   uint32_t flags);

/* --- looking -------------------------------------------------------------- */

enum slot_state word_state(const struct broker *self,
			   const struct slot_ref *ref);

uint64_t used(struct broker *self, uint32_t uid, enum account_kind kind);

/* Check that memory, accounts and records are as they were before. */
void assert_empty(struct broker *self, uint32_t uid);
