/*
 * Resharding of gathers (shm/gathers.h). Ranks reshard the gathers of one group
 * to a smaller mesh or completely, each at its own speed, and compare with the
 * others.
 *
 * These properties are checked:
 *   - Ranks that do the same are never refused, however far one is ahead.
 *   - A rank that names a mesh for the last gather, which the others have
 *     resharded completely, is refused.
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   WORD_FIRST  a rank reads the word before it checks which ranks have ended
 *               the gather
 *   END_FIRST   a rank ends the gather before it writes the word
 *   NO_LOOK     a rank does not check which ranks have ended the gather
 */
#ifndef N
#define N 3
#endif
#define N_GATHERS 3

/* The meshes of the gathers 1, 2 and 3 are 1, 1 and 0. */
#define MESH(n) (n < N_GATHERS)

/* The word of the group. The rank in it is left out, because only error
 * messages use it. */
byte number, mesh;
byte ended[N]; /* number of the last gather that the rank has ended */

byte n_finished;

inline look_at_ended()
{
	atomic { has_other = false; i = 0 };
	do
	:: atomic { i < N && ended[i] >= self -> has_other = true };
		break
	:: atomic { i < N && ended[i] < self -> i++ }
	:: i == N -> break
	od
}

inline look_at_word()
{
	atomic { seen = number; given = mesh }
}

/* `asked` is the mesh of this rank; 0: it reshards completely. */
inline set_mesh()
{
	has_other = false;
	is_right = true;
#ifdef WORD_FIRST
	look_at_word();
#endif
	do
	:: true ->
#ifndef NO_LOOK
		if
		:: asked -> look_at_ended()
		:: else
		fi;
#endif
#ifndef WORD_FIRST
		look_at_word();
#endif
		if
		:: !asked || has_other || seen >= self -> break
		:: else
		fi;
		if
		:: atomic { number == seen && mesh == given ->
			number = self; mesh = asked };
			break
		:: atomic { !(number == seen && mesh == given) ->
			seen = number; given = mesh }
		fi
	od;
	if
	:: seen < self -> is_right = !has_other
	:: seen == self -> is_right = given == asked
	:: else
	fi
}

proctype rank(byte me)
{
	byte self = 1, asked, i, seen, given;
	bool has_other, is_right;

	do
	:: self <= N_GATHERS ->
		asked = MESH(self);
#ifdef END_FIRST
		ended[me] = self;
		set_mesh();
#else
		set_mesh();
		ended[me] = self;
#endif
		assert(is_right);
		self++
	:: else -> break
	od;
	n_finished++
}

/* This rank comes last, and names a mesh that the others did not. */
proctype stray()
{
	byte self = N_GATHERS, asked = 1, i, seen, given;
	bool has_other, is_right;

	n_finished == N;
	set_mesh();
	assert(!is_right)
}

init
{
	byte r = 0;

	atomic {
		do
		:: r < N -> run rank(r); r++
		:: else -> break
		od;
		run stray()
	}
}
