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

// Command devwebhook prepares the admission webhooks of a manager that runs on
// a developer's machine: its certificate, and the webhook configurations that
// send the API server there.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "devwebhook:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("say what to do: certs or manifests")
	}
	fs := flag.NewFlagSet("devwebhook "+args[0], flag.ExitOnError)
	dir := fs.String("dir", "certs", "`directory` of certificate, key and authority")
	host := fs.String("host", "127.0.0.1", "`host` name or address at which the API server reaches this machine")
	port := fs.Int("port", 9443, "`port` of the webhooks")
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "certs":
		_, err := controlplane.WriteServingCerts(*dir, *host)
		return err
	case "manifests":
		ca, err := os.ReadFile(filepath.Join(*dir, "ca.crt"))
		if err != nil {
			return fmt.Errorf("%w; make it with: devwebhook certs --dir %s --host %s", err, *dir, *host)
		}
		manifests, err := controlplane.WebhookManifests("config/webhook/manifests.yaml", net.JoinHostPort(*host, strconv.Itoa(*port)), ca)
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(manifests)
		return err
	default:
		return fmt.Errorf("no command %q: say certs or manifests", args[0])
	}
}
