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

// Command simulator runs the simulator of AlterShield Server alone, to try the
// operator without the Java server.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"sync"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "simulator:", err)
		os.Exit(1)
	}
}

// config is what the flags say.
type config struct {
	listen, callbackURL, platform, tokenFile, scene, admissionScene, failPod string
	delay                                                                    time.Duration
	journal                                                                  bool
}

func parse(args []string, out io.Writer) (config, error) {
	var c config
	fs := flag.NewFlagSet("simulator", flag.ContinueOnError)
	fs.SetOutput(out)
	fs.StringVar(&c.listen, "listen", "127.0.0.1:8083", "`address` to serve on")
	fs.StringVar(&c.callbackURL, "callback-url", "http://127.0.0.1:8080"+altershield.CallbackPath,
		"`URL` of the operator that verdicts are sent to; empty sends none")
	fs.StringVar(&c.platform, "platform", altershield.DefaultPlatform, "`name` of the registered platform")
	fs.StringVar(&c.tokenFile, "token-file", "",
		"`file` with the platform's token; without one no signature is verified, and callbacks carry one the operator refuses")
	fs.StringVar(&c.scene, "scene", altershield.DefaultScene, "`key` of the registered scene (G2)")
	fs.StringVar(&c.admissionScene, "admission-scene", "", "`key` of the registered scene for admission checks (G1)")
	fs.StringVar(&c.failPod, "fail-pod", "", "regular `expression`: batches with a pod whose location matches fail their POST check")
	fs.DurationVar(&c.delay, "delay", 0, "how long each check runs")
	fs.BoolVar(&c.journal, "journal", false, "print each request and each callback as one line")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	if fs.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if c.delay < 0 {
		return c, errors.New("--delay is negative")
	}
	return c, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args, out)
	if err != nil {
		return err
	}
	options := simulator.Options{
		Platform: c.platform, Scene: c.scene, AdmissionScene: c.admissionScene, SkipSignature: c.tokenFile == "",
		JournalLimit: 1000,
	}
	if c.callbackURL != "" {
		options.CallbackURLs = []string{c.callbackURL}
	}
	if c.tokenFile != "" {
		tokens, err := altershield.NewTokenFile(c.tokenFile, clock.RealClock{}).Tokens()
		if err != nil {
			return err
		}
		options.Token = tokens[0]
	}
	if c.journal {
		var mu sync.Mutex
		options.OnEntry = func(e simulator.Entry) {
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintln(out, e)
		}
	}
	var failPod *regexp.Regexp
	if c.failPod != "" {
		if failPod, err = regexp.Compile(c.failPod); err != nil {
			return fmt.Errorf("--fail-pod: %w", err)
		}
	}
	s := simulator.New(options)
	defer s.Shutdown()
	s.Script(simulator.Script{Delay: c.delay})
	if failPod != nil {
		s.Script(simulator.Script{
			Match:   simulator.Match{Location: failPod, Stage: altershield.StagePost},
			Verdict: altershield.VerdictFail,
			Delay:   c.delay,
		})
	}
	if err := s.Start(c.listen); err != nil {
		return err
	}
	fmt.Fprintf(out, "AlterShield simulator on %s, callbacks to %s\n", s.URL(), cmp.Or(c.callbackURL, "nobody"))
	<-ctx.Done()
	return nil
}
