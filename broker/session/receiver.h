/*
 * The receiver: reads frames of peers. The first one is the hello, which gives
 * the peer its session; then requests follow, which session_hooks.on_request
 * handles. A frame that violates the protocol closes the connection, but the
 * session keeps its holds.
 */
#pragma once

struct peer;

/* Handle the frame that has arrived, and frames after one-way requests. */
void receiver_read(struct peer *peer);
