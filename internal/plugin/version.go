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

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Versions is the output of version -o json.
type Versions struct {
	// Client is this program.
	Client ClientVersion `json:"client"`
	// Server is the operator in the cluster; absent with --client, or if it is unknown.
	Server *ServerVersion `json:"server,omitempty"`
	// Warnings about versions that do not fit.
	Warnings []string `json:"warnings,omitempty"`
}

// ClientVersion is the version of this program.
type ClientVersion struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// ServerVersion is the version of the operator in the cluster.
type ServerVersion struct {
	// Namespace of the operator.
	Namespace string `json:"namespace"`
	// Images of its Deployments.
	Images []string `json:"images,omitempty"`
}

// managerLabels select the Deployment of the operator, however it was installed.
var managerLabels = client.MatchingLabels{"control-plane": "controller-manager", "app.kubernetes.io/name": "altershield-operator"}

func versionCommand(c *connection) *cobra.Command {
	var only bool
	var operator string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and of the operator",
		Long: strings.TrimSpace(`
Print the version of this program, and of the operator in the cluster: the image of its
Deployment. It warns if their minor versions differ.`),
		Example: `  kubectl altershield version
  kubectl altershield version --client -o json`,
		Args: cobra.NoArgs,
	}
	o := newOutput(cmd, "", "")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := o.printer()
		if err != nil {
			return err
		}
		return c.version(cmd.Context(), only, operator, p)
	}
	flags := cmd.Flags()
	flags.BoolVar(&only, "client", false, "only this program; needs no cluster")
	addOperatorNamespace(flags, &operator)
	return cmd
}

func (c *connection) version(ctx context.Context, only bool, operator string, p printers.ResourcePrinter) error {
	v := Versions{Client: ClientVersion{
		Version: c.Version, Commit: c.Commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}}
	var failed error
	if !only {
		v.Server, failed = c.serverVersion(ctx, operator)
		if failed == nil {
			v.Warnings = skew(c.Version, v.Server)
		}
	}
	if p != nil {
		return errors.Join(printObject(c.Out, p, v), failed)
	}
	printf(c.Out, "client: %s (commit %s, %s, %s)\n", v.Client.Version, v.Client.Commit, v.Client.Go, v.Client.Platform)
	if failed != nil || only {
		return failed
	}
	images := cmp.Or(strings.Join(v.Server.Images, ", "), "no Deployment of it that you may read")
	printf(c.Out, "operator: %s, in %s\n", images, v.Server.Namespace)
	for _, warning := range v.Warnings {
		printf(c.ErrOut, "warning: %s\n", warning)
	}
	return nil
}

// serverVersion reads the version of the operator.
func (c *connection) serverVersion(ctx context.Context, operator string) (*ServerVersion, error) {
	api, err := c.client()
	if err != nil {
		return nil, err
	}
	operator = operatorIn(ctx, api, operator)
	v := &ServerVersion{Namespace: operator}
	kind := schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "ChangeWorkload"}
	_, err = api.RESTMapper().RESTMapping(kind, v1alpha1.GroupVersion.Version)
	switch {
	case meta.IsNoMatchError(err):
		return nil, remedy(errors.New("the operator is not installed in this cluster"), "install it, or choose another cluster with --context")
	case err != nil:
		return nil, fmt.Errorf("look for the kind ChangeWorkload: %w", err)
	}
	var deployments appsv1.DeploymentList
	switch err := api.List(ctx, &deployments, client.InNamespace(operator), managerLabels); {
	case apierrors.IsForbidden(err):
		return v, nil
	case err != nil:
		return nil, fmt.Errorf("list deployments of %s: %w", operator, err)
	}
	for i := range deployments.Items {
		for _, container := range deployments.Items[i].Spec.Template.Spec.Containers {
			v.Images = append(v.Images, container.Image)
		}
	}
	return v, nil
}

// skew returns warnings about versions of client and server that do not fit.
func skew(own string, server *ServerVersion) (warnings []string) {
	for _, image := range server.Images {
		tag := tagOf(image)
		mine, err := version.ParseSemantic(own)
		if err != nil {
			break // not a release
		}
		theirs, err := version.ParseSemantic(tag)
		if err != nil {
			continue
		}
		if mine.Major() != theirs.Major() || mine.Minor() != theirs.Minor() {
			warnings = append(warnings, fmt.Sprintf("this program is %s, and the operator %s: fields that one of them does not know are omitted; "+
				"use a program of the operator's minor version", own, tag))
		}
	}
	return warnings
}

// tagOf returns the tag of an image; empty if it has none.
func tagOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	name := image[strings.LastIndex(image, "/")+1:]
	_, tag, _ := strings.Cut(name, ":")
	return tag
}
