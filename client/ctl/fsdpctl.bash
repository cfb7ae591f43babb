# Completion of fsdpctl for bash. fsdpctl itself says what can follow.

_fsdpctl()
{
	local cur=${COMP_WORDS[COMP_CWORD]} typed line word
	COMPREPLY=()
	# The words are as they were typed, so names may contain backslashes.
	# shellcheck disable=SC2162
	IFS= read typed <<<"$cur"
	while IFS= read -r line; do
		if [[ $line == :files ]]; then
			compopt -o filenames
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		else
			# Anyone can publish a name that is a command.
			printf -v word %q "${line%%$'\t'*}"
			COMPREPLY+=("$word")
		fi
	done < <("${COMP_WORDS[0]}" complete -- \
		"${COMP_WORDS[@]:1:COMP_CWORD-1}" "$typed" 2>/dev/null)
	# no space after a bundle's name, because a member's name can follow
	[[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace
	return 0
}

complete -F _fsdpctl fsdpctl
