/*
 * What peers send: the hello, which gives a peer its session, then requests,
 * which go to the verbs (session_hooks.on_request). A frame that violates the
 * protocol closes the connection, but the session keeps its holds.
 */
#pragma once

struct peer;

/* A frame has come: handle it, and one-way requests after it. */
void receiver_read(struct peer *peer);
