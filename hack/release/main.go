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

// Command release builds the image of the operator and the archives of the kubectl plugin, without a container engine and with the same
// bytes on every machine, and pushes the image. The Makefile runs it; other tools do the rest of a release.
//
//   - main.go has the commands and their flags
//   - source.go builds programs from the tree with the pinned Go
//   - files.go has the base files of the image, and writes tar archives
//   - image.go builds the image of each platform, and their index
//   - archive.go writes and reads archives of the image
//   - push.go pushes an archive to a registry
//   - plugin.go writes archives of the kubectl plugin, and the manifest for krew
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
)

const usage = `release image [flags]           builds the image for all platforms
release plugin [flags]          builds the archives of the kubectl plugin, and the manifest for krew
release push ARCHIVE IMAGE      pushes the image of an archive`

// releaseVersion matches a semantic version with a leading v. It allows no build metadata, because tags of images cannot have it.
var releaseVersion = regexp.MustCompile(
	`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?$`)

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
	var command string
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "image":
		return imageCommand(ctx, args, out)
	case "plugin":
		return pluginCommand(ctx, args)
	case "push":
		if len(args) != 2 {
			return errors.New("push needs an archive and the name of an image")
		}
		return pushCommand(ctx, args[0], args[1], out)
	default:
		return fmt.Errorf("%q is no command; usage:\n%s", command, usage)
	}
}

// sourceFlags returns the common flags of both builds.
func sourceFlags(command string) (*flag.FlagSet, *source) {
	s := &source{}
	flags := flag.NewFlagSet("release "+command, flag.ContinueOnError)
	flags.StringVar(&s.root, "root", ".", "`directory` of the repository")
	flags.StringVar(&s.version, "version", "", "`version` that the programs report")
	flags.StringVar(&s.commit, "commit", "", "`commit` that the programs report")
	flags.StringVar(&s.out, "out", "dist", "`directory` to write to")
	flags.StringVar(&s.binaries, "binaries", "", "`directory` that keeps the programs, so that their bills of materials can be written")
	return flags, s
}
