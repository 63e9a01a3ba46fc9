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
// operator without the Java server. It prints requests and callbacks.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"github.com/traas-stack/altershield-operator/hack/simulator/journal"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

const (
	// defaultMessage is the message of a failing verdict.
	defaultMessage = "failed as asked for by --fail flags"
	// makeTokenFile is the token file of the Makefile.
	makeTokenFile = "certs/altershield-token"
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

// config has the values of the flags.
type config struct {
	listen, platform, tokenFile, scene, admissionScene string
	callbackURLs                                       []string
	delay                                              time.Duration
	journal                                            bool
	// failing is the script of the checks that fail, nil for none.
	failing *simulator.Script
}

func parse(args []string, out io.Writer) (config, error) {
	var c config
	var callbackURLs, failPod string
	failing := simulator.Script{
		Verdict: altershield.VerdictFail, Match: simulator.Match{CheckType: altershield.CheckBatch, Stage: altershield.StagePost},
	}
	message := defaultMessage
	flags := flag.NewFlagSet("simulator", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&c.listen, "listen", "127.0.0.1:9090", "`address` to serve on")
	flags.StringVar(&callbackURLs, "callback-url", "http://127.0.0.1:8080"+altershield.CallbackPath,
		"`URL` of the operator that verdicts are sent to; several, comma separated, for its replicas; empty sends none")
	flags.StringVar(&c.platform, "platform", altershield.DefaultPlatform, "`name` of the registered platform")
	flags.StringVar(&c.tokenFile, "token-file", "",
		"`file` with the platform's token, created if it is missing; without a token no signature is verified, "+
			"and the operator refuses the callbacks")
	flags.StringVar(&c.scene, "scene", altershield.DefaultScene, "`key` of the registered scene (G2)")
	flags.StringVar(&c.admissionScene, "admission-scene", "", "`key` of the registered scene for admission checks (G1)")
	flags.DurationVar(&c.delay, "delay", 0, "how long each check runs")
	flags.BoolVar(&c.journal, "journal", true, "print each request and each callback as one line")
	flags.StringVar(&failing.Workload, "fail-workload", "", "fail checks of this `workload` only: its name, or namespace/name")
	flags.StringVar(&failPod, "fail-pod", "", "fail checks of batches with a pod whose name matches this regular `expression` only")
	checkTypes := map[string]altershield.CheckType{"batch": altershield.CheckBatch, "order": altershield.CheckOrder}
	flags.Func("fail-check", "fail checks of this `kind`, \"batch\" or \"order\" (default batch)", func(kind string) error {
		return choose(&failing.CheckType, kind, checkTypes)
	})
	flags.Func("fail-stage", "fail checks at this `stage`, \"PRE\" or \"POST\" (default POST)", func(stage string) error {
		return choose(&failing.Stage, stage, map[string]altershield.Stage{"PRE": altershield.StagePre, "POST": altershield.StagePost})
	})
	flags.IntVar(&failing.Times, "fail-times", 0, "number of checks that fail, all when 0")
	flags.StringVar(&message, "fail-message", message, "message of the failing verdict")
	flags.Usage = func() {
		fmt.Fprintln(out, "The simulator of AlterShield Server. Checks pass, except those that the --fail flags select together.")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if c.delay < 0 {
		return c, errors.New("--delay is negative")
	}
	if failing.Times < 0 {
		return c, errors.New("--fail-times is negative")
	}
	var err error
	if c.callbackURLs, err = splitURLs(callbackURLs); err != nil {
		return c, err
	}
	if failPod != "" {
		if failing.Location, err = regexp.Compile(failPod); err != nil {
			return c, fmt.Errorf("--fail-pod: %w", err)
		}
		if failing.CheckType == altershield.CheckOrder {
			return c, errors.New("--fail-pod and --fail-check=order exclude each other: the checks of an order are about no pod")
		}
	}
	failing.Delay = c.delay
	failing.Rules = []altershield.Rule{{ID: "rule-1", Name: "simulated-rule", Msg: message, Verdict: altershield.VerdictFail}}
	flags.Visit(func(f *flag.Flag) {
		if strings.HasPrefix(f.Name, "fail-") {
			c.failing = &failing
		}
	})
	return c, nil
}

// splitURLs parses a list of URLs of operators.
func splitURLs(list string) (urls []string, err error) {
	for u := range strings.SplitSeq(list, ",") {
		if u = strings.TrimSpace(u); u == "" {
			continue
		}
		parsed, err := url.Parse(u)
		if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" {
			return nil, fmt.Errorf("--callback-url: %q is not the URL of an operator, such as http://127.0.0.1:8080%s", u, altershield.CallbackPath)
		}
		urls = append(urls, u)
	}
	return urls, nil
}

// choose sets a flag that has few values.
func choose[T any](into *T, text string, of map[string]T) error {
	value, known := of[text]
	if !known {
		return errors.New("is none of those")
	}
	*into = value
	return nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args, out)
	if err != nil {
		return err
	}
	options := simulator.Options{
		Platform: c.platform, Scene: c.scene, AdmissionScene: c.admissionScene, SkipSignature: c.tokenFile == "",
		CallbackURLs: c.callbackURLs, JournalLimit: 1000,
	}
	if c.tokenFile != "" {
		if options.Token, err = token(c.tokenFile, out); err != nil {
			return err
		}
	}
	var mu sync.Mutex // of out
	if c.journal {
		narrator := journal.NewNarrator()
		options.OnEntry = func(e simulator.Entry) {
			if e.Action == altershield.ActionHeartbeat {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintln(out, narrator.Line(e))
		}
	}
	s := simulator.New(options)
	defer s.Shutdown()
	s.Script(simulator.Script{Delay: c.delay})
	if c.failing != nil {
		s.Script(*c.failing)
	}
	if err := s.Start(c.listen); err != nil {
		return err
	}
	mu.Lock()
	c.announce(out, s.URL())
	mu.Unlock()
	<-ctx.Done()
	return nil
}

// announce prints how to connect a manager.
func (c config) announce(out io.Writer, serverURL string) {
	fmt.Fprintf(out, "AlterShield simulator on %s, callbacks to %s\n", serverURL, cmp.Or(strings.Join(c.callbackURLs, ", "), "no operator"))
	flags := []string{"--altershield-url=" + serverURL}
	if c.tokenFile != "" {
		flags = append(flags, "--altershield-token-file="+c.tokenFile)
	}
	given := len(flags)
	for _, f := range []struct{ name, value, standard string }{
		{"platform", c.platform, altershield.DefaultPlatform},
		{"scene", c.scene, altershield.DefaultScene},
		{"admission-scene", c.admissionScene, ""},
	} {
		if f.value != f.standard {
			flags = append(flags, "--altershield-"+f.name+"="+f.value)
		}
	}
	target := "make run SERVER_URL=" + serverURL
	if c.tokenFile != makeTokenFile {
		target += " TOKEN_FILE=" + c.tokenFile
	}
	if others := flags[given:]; len(others) > 0 {
		target += " ARGS='" + strings.Join(others, " ") + "'"
	}
	fmt.Fprintf(out, "Connect a manager to it with\n\n    %s\n\nor with the flags\n\n    %s\n\n", target, strings.Join(flags, "\n    "))
	if c.tokenFile == "" {
		fmt.Fprintln(out, "Without --token-file the operator refuses the callbacks, and learns of verdicts only by asking.")
	}
}

// token reads the token of a file. It creates a missing file.
func token(path string, out io.Writer) (string, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case err == nil:
		_, err = fmt.Fprintln(file, rand.Text())
		if err = errors.Join(err, file.Close()); err != nil {
			return "", err
		}
		fmt.Fprintf(out, "made a token in %s\n", path)
	case !errors.Is(err, fs.ErrExist):
		return "", fmt.Errorf("--token-file: %w", err)
	}
	tokens, err := altershield.NewTokenFile(path, clock.RealClock{}).Tokens()
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return tokens[0], nil
}
