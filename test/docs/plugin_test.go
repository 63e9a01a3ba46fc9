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

package docs

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/internal/plugin"
)

// pluginCommand begins a command of the plugin.
const pluginCommand = "kubectl altershield"

// aboutPlugin are the documents in which a flag without a command is a flag of the plugin.
var aboutPlugin = []string{
	"docs/reference/plugin.md", "docs/tasks/respond-to-an-alert.md",
	"docs/tasks/wait-in-ci.md", "docs/tasks/try-a-policy.md", "docs/tasks/handle-a-failed-release.md", "docs/getting-started/first-block.md",
}

// forPipelines are the documents with commands for pipelines, workloads and a Prometheus of users. These commands are only parsed;
// test/plugin, docs/getting-started/first-block.md and TestRealSimulation of internal/plugin run similar ones.
var forPipelines = []string{"docs/tasks/wait-in-ci.md", "docs/tasks/try-a-policy.md"}

func newPlugin() *cobra.Command {
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: io.Discard, ErrOut: io.Discard}
	return plugin.NewCommand(plugin.Options{IOStreams: streams})
}

// accepts returns an error if the plugin does not accept a command.
func accepts(command string) error {
	// In a shell, a pipe ends the command, and quotes are removed.
	command, _, _ = strings.Cut(command, " | ")
	words := strings.Fields(strings.NewReplacer("'", "", "\"", "").Replace(command))
	root := newPlugin()
	cmd, rest, err := root.Find(words)
	switch {
	case err != nil:
		return err
	case cmd == root:
		return fmt.Errorf("the plugin has no command %q", command)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	args := cmd.Flags().Args()
	if len(args) == 0 && len(rest) == 0 {
		return nil // only its name
	}
	return cmd.ValidateArgs(args)
}

// TestPluginCommands checks that the plugin accepts every command in documents, in sentences and in pipelines too.
func TestPluginCommands(t *testing.T) {
	typed := regexp.MustCompile(`kubectl altershield ([^\x60\n]+)`)
	for _, path := range documents {
		for i, line := range read(t, path).lines {
			code := line
			if strings.Contains(line, "\x60") { // in a sentence: the code between two backticks
				code = ""
				for j, part := range strings.Split(line, "\x60") {
					if j%2 == 1 && strings.HasPrefix(part, pluginCommand+" ") {
						code += part + "\n"
					}
				}
			}
			for _, found := range typed.FindAllStringSubmatch(code, -1) {
				text := strings.TrimSpace(comment.ReplaceAllString(found[1], ""))
				if err := accepts(text); err != nil {
					t.Errorf("%s:%d: %s %s: %v", path, i+1, pluginCommand, text, err)
				}
			}
		}
	}
}

// TestYAML checks that the YAML in documents can be decoded; objects of Kubernetes are decoded strictly.
func TestYAML(t *testing.T) {
	decoder := serializer.NewCodecFactory(clientgoscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, path := range documents {
		for _, b := range read(t, path).blocks {
			if b.language != "yaml" {
				continue
			}
			reader := yaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(strings.Join(b.lines, "\n"))))
			for _, doc := range documentsOf(t, reader) {
				var content map[string]any
				if err := sigsyaml.UnmarshalStrict(doc, &content); err != nil {
					t.Errorf("%s:%d: %v", path, b.line, err)
				}
				version, _ := content["apiVersion"].(string)
				gv, err := schema.ParseGroupVersion(version)
				if err != nil {
					t.Errorf("%s:%d: %v", path, b.line, err)
				}
				if version != "" && clientgoscheme.Scheme.IsVersionRegistered(gv) {
					if _, _, err := decoder.Decode(doc, nil, nil); err != nil {
						t.Errorf("%s:%d: %v", path, b.line, err)
					}
				}
			}
		}
	}
}

// TestPluginJobs checks that the plugin accepts the arguments of Jobs that run its image.
func TestPluginJobs(t *testing.T) {
	jobs := 0
	for _, path := range documents {
		for _, b := range read(t, path).blocks {
			var job struct {
				Spec struct{ Template corev1.PodTemplateSpec } `json:"spec"`
			}
			first, _, _ := strings.Cut(strings.Join(b.lines, "\n"), "\n---\n")
			if b.language != "yaml" || sigsyaml.Unmarshal([]byte(first), &job) != nil {
				continue
			}
			for _, c := range job.Spec.Template.Spec.Containers {
				if !strings.Contains(c.Image, "/kubectl-altershield:") {
					continue
				}
				jobs++
				if err := accepts(strings.Join(c.Args, " ")); err != nil {
					t.Errorf("%s:%d: arguments %q: %v", path, b.line, c.Args, err)
				}
			}
		}
	}
	if jobs == 0 {
		t.Error("no document has a Job with the image of the plugin")
	}
}

func documentsOf(t *testing.T, r io.Reader) [][]byte {
	t.Helper()
	var all [][]byte
	buffer := make([]byte, 64<<10)
	for {
		n, err := r.Read(buffer)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, append([]byte(nil), buffer[:n]...))
	}
}
