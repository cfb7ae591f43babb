/*
 * The parts of a broker in the test's own process that need no catalog: loop,
 * configuration, closer and deadlines. It works without Criterion, so that the
 * fuzzer can use it.
 */
#pragma once

struct broker;
struct error;

/* Open the parts, with limits for little memory. `self` is zeroed. */
int parts_open(struct broker *self, struct error *err);
