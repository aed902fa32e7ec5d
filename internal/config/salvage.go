package config

import (
	"errors"

	"github.com/urfave/cli/v2"
)

// Salvage holds the validated options of `quern salvage`.
type Salvage struct {
	Dir       string
	Output    string
	Overwrite bool
}

// SalvageFlags returns the flags of `quern salvage`.
func SalvageFlags() []cli.Flag {
	return []cli.Flag{
		configFlag(),
		boolean(catTransfer, "overwrite", false, "start over, even if OUT exists"),
	}
}

// FromSalvage reads the flags of `quern salvage`.
func FromSalvage(c *cli.Context) (Salvage, error) {
	return read(c, func(p *parser, s *Salvage) {
		s.Overwrite = p.c.Bool("overwrite")
		if p.c.NArg() != 2 || p.c.Args().Get(0) == "" || p.c.Args().Get(1) == "" {
			p.add(errors.New("name the data directory and the file to write: quern salvage DIR OUT"))
			return
		}
		s.Dir, s.Output = p.c.Args().Get(0), p.c.Args().Get(1)
	})
}
