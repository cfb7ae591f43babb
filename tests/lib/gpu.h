/*
 * The devices of one test. With the fake driver, its processes share a folder.
 * Criterion runs each test in a process of its own, so each can set other
 * options of the fake (FAKECUDA_...) before its first call of the driver. A
 * real driver ignores all of them, and a test that depends on one begins with
 * need_fake().
 *
 *	TestSuite(vmm, .init = gpu_open, .fini = gpu_close);
 */
#pragma once
#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Make the folder and remove it, at the latest when the process exits. */
void gpu_open(void);
void gpu_close(void);

/* Returns whether the driver is a fake. This does not load it, because a loaded
 * driver would not survive a fork(). */
bool is_fake(void);

/* Skips the test on a real driver, where it cannot pass. `why` completes "needs
 * the fake driver: ". */
void need_fake(const char *why);

/* Skips the test on a machine with fewer than `wanted` GPUs. `n` is their
 * number; the fake has enough. */
void need_gpus(uint32_t n, uint32_t wanted);

/* Returns how often the process called a function of the driver ("MemCreate"),
 * or made "contexts". FAKECUDA_COUNT=1 must be set for it. Returns -1 if the
 * process called no function, or if the driver is a real one. */
long gpu_count(pid_t pid, const char *what);

/* Returns whether the process called the function `n` times. With a real
 * driver, which does not count, this is true. */
bool gpu_is_count(pid_t pid, const char *function, long n);
