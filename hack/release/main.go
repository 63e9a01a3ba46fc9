/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Command release makes what a release consists of, without a container engine:
// images, bills of materials, provenance, checksums. `make release` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// command is one of the things that the program does.
type command struct {
	name, arguments, summary string
	// run gets the arguments behind the name; what it says goes to out.
	run func(ctx context.Context, c *call) error
}

// call is a command as it was called.
type call struct {
	flags *flag.FlagSet
	args  []string
	out   io.Writer
}

// parse wants as many arguments behind the flags as there are names.
func (c *call) parse(names ...string) error {
	if err := c.flags.Parse(c.args); err != nil {
		return err
	}
	if c.flags.NArg() != len(names) {
		return fmt.Errorf("have %d arguments, want %d: %v", c.flags.NArg(), len(names), names)
	}
	return nil
}

var commands = []command{
	{"check", "", "say whether a version may be released from the tree", checkCommand},
	{"image", "", "build the image for all platforms into a directory", imageCommand},
	{"push", "ARCHIVE IMAGE", "push the image of an archive, and what refers to it, to a registry", pushCommand},
	{"chart-digest", "CHART", "print the digest that a packaged chart has in a registry", chartDigestCommand},
	{"push-chart", "CHART REPOSITORY", "push a packaged chart to an OCI repository", pushChartCommand},
	{"sbom", "BINARY", "write the bill of materials of a Go binary, or of the one in an archive", sbomCommand},
	{"checksums", "DIRECTORY", "write checksums.txt of the files in a directory", checksumsCommand},
	{"notes", "VERSION", "print what CHANGELOG.md says about a version", notesCommand},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 {
		for _, c := range commands {
			if c.name != args[0] {
				continue
			}
			flags := flag.NewFlagSet("release "+c.name, flag.ContinueOnError)
			flags.Usage = func() {
				fmt.Fprintf(flags.Output(), "Usage: release %s [flags] %s\n%s\n", c.name, c.arguments, c.summary)
				flags.PrintDefaults()
			}
			if err := c.run(ctx, &call{flags: flags, args: args[1:], out: out}); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			return nil
		}
	}
	fmt.Fprintln(os.Stderr, "Usage: release COMMAND [flags] [arguments]")
	for _, c := range commands {
		fmt.Fprintf(os.Stderr, "  %-12s %-18s %s\n", c.name, c.arguments, c.summary)
	}
	return errors.New("name one of the commands above")
}
