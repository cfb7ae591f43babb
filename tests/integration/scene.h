/*
 * Scenes test a request whose broker is killed: once before the request, and
 * once at every failpoint that the broker passes during the request.
 *
 * A scene is one kind of request with its preparation and the checks after it.
 * It is played once to learn the failpoints, and then once more for each of
 * them, with a broker that dies there. The call must succeed nevertheless, must
 * have happened exactly once, and must leave no resources.
 */
#pragma once
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/memory.h"
#include <pthread.h>
#include <string.h>

struct stage {
	struct chaos chaos;
	struct fsdp_client *client, *other;
	/* This tensor is held and published during the whole scene, and nothing
	 * may change it. */
	struct fsdp_client *bystander;
	struct fsdp_tensor *kept;
	uint64_t chunk_bytes; /* size of its chunk */
	struct fsdp_tensor *mine[4], *others[4];
	struct fsdp_bundle *bundle;
	struct fsdp_ticket ticket;
	pthread_t thread;
	int r;
};

typedef void scene_fn(struct stage *stage);

struct scene {
	scene_fn *prepare; /* may be NULL */
	scene_fn *act;
	scene_fn *check;
	const char *config;
	/* the memory is that of bundles, which have no pool */
	bool has_no_pool;
	/* The broker's work after the call varies, so that a failpoint may be
	 * passed less often than in the run that learned the failpoints. */
	bool is_ragged;
};

/* Play the scene without a death, with a death before the request, and with one
 * at each failpoint. */
void play(const struct scene *scene);

#define SCENE(name, ...)                                                       \
	Test(broker_dies_during, name)                                         \
	{                                                                      \
		static const struct scene scene = {__VA_ARGS__};               \
                                                                               \
		play(&scene);                                                  \
	}

/* --- a bundle for scenes ------------------------------------------------- */

#define BUNDLE "scene/model/"

extern const struct fsdp_spec PAGE; /* of each member */
extern const char *const MEMBERS[2];

void begin(struct stage *stage);
void fill(struct stage *stage);
void write_members(struct stage *stage, uint64_t version);
/* Commit the bundle, which must get this version. */
void commit(struct stage *stage, uint64_t expected);
/* Begin a bundle, add its members, and write them for version 1. */
void begin_and_fill(struct stage *stage);
void commit_first(struct stage *stage);
/* Do the same, commit the bundle, and release the members. */
void load_first(struct stage *stage);
