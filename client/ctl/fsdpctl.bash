# Completion of fsdpctl for bash. fsdpctl itself says what can follow.

_fsdpctl()
{
	local cur=${COMP_WORDS[COMP_CWORD]} line
	COMPREPLY=()
	while IFS= read -r line; do
		if [[ $line == :files ]]; then
			compopt -o filenames
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		else
			COMPREPLY+=("${line%%$'\t'*}")
		fi
	done < <("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" \
		2>/dev/null)
	# no space after a bundle's name, because a member's name can follow
	[[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace
	return 0
}

complete -F _fsdpctl fsdpctl
