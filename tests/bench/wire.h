/*
 * Counts the messages that this process's library exchanges with the kernel.
 * The executable defines sendmsg(), recvmsg() and mmap(), which the dynamic
 * linker prefers to libc's when libfsdp calls them. So floors can use exactly
 * the message sizes of ours, and new descriptors and mappings are counted where
 * they are made, even if they are gone a moment later.
 */
#pragma once
#include <stdint.h>

struct wire {
	uint64_t n_sent, n_received; /* messages */
	uint64_t sent_size;          /* bytes of the last message */
	uint64_t received_size;
	uint64_t n_fds; /* descriptors that were received */
	uint64_t n_mmaps;
};

extern struct wire wire;
