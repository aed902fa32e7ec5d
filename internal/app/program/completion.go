package program

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

// completions are scripts that ask the program itself. If its last argument is
// --generate-bash-completion, the program lists commands, or the flags that begin like the argument
// before. It takes "--" as the end of the flags and then lists nothing, so the scripts pass "-"
// instead. NAME stands for the program's name.
var completions = map[string]string{
	"bash": `_NAME() {
  local cur="${COMP_WORDS[COMP_CWORD]}" words
  words=("${COMP_WORDS[@]:0:COMP_CWORD}")
  case "$cur" in
    --) words+=(-) ;;
    -*) words+=("$cur") ;;
  esac
  COMPREPLY=($(compgen -W "$("${words[@]}" --generate-bash-completion 2>/dev/null)" -- "$cur"))
}
complete -o bashdefault -o default -F _NAME NAME
`,
	"zsh": `#compdef NAME
_NAME() {
  local -a found
  local -a asked=("${words[@]:0:$((CURRENT-1))}")
  case "${words[CURRENT]}" in
    --) asked+=(-) ;;
    -*) asked+=("${words[CURRENT]}") ;;
  esac
  found=("${(@f)$(_CLI_ZSH_AUTOCOMPLETE_HACK=1 "${asked[@]}" --generate-bash-completion 2>/dev/null)}")
  if [[ -n "${found[1]}" ]]; then _describe 'NAME' found; else _files; fi
}
# From a file in $fpath this runs when the first completion is wanted, else it is sourced.
if [[ "${funcstack[1]}" == _NAME ]]; then _NAME "$@"; else compdef _NAME NAME; fi
`,
	"fish": `function __NAME_complete
  set -l asked (commandline -opc)
  set -l current (commandline -ct)
  switch $current
    case --
      set -a asked -
    case '-*'
      set -a asked $current
  end
  $asked --generate-bash-completion 2>/dev/null
end
complete -c NAME -f -a '(__NAME_complete)'
`,
}

// manCommand prints the man page, for packages.
func manCommand() *cli.Command {
	return &cli.Command{Name: "man", Hidden: true, Action: func(c *cli.Context) error {
		page, err := c.App.ToManWithSection(1)
		fmt.Fprint(c.App.Writer, page)
		return err
	}}
}

func completionCommand(name string) *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print the shell's completion script",
		ArgsUsage: "bash|zsh|fish",
		Description: strings.ReplaceAll(`Examples:

   source <(NAME completion bash)
   NAME completion zsh > "${fpath[1]}/_NAME"
   NAME completion fish > ~/.config/fish/completions/NAME.fish`, "NAME", name),
		Action: func(c *cli.Context) error {
			script, ok := completions[c.Args().First()]
			if !ok || c.NArg() != 1 {
				return BadUsage(c, fmt.Errorf("name one shell: bash, zsh or fish"))
			}
			_, err := fmt.Fprint(c.App.Writer, strings.ReplaceAll(script, "NAME", name))
			return err
		},
		BashComplete: func(c *cli.Context) {
			for _, shell := range []string{"bash", "zsh", "fish"} {
				fmt.Fprintln(c.App.Writer, shell)
			}
		},
	}
}
