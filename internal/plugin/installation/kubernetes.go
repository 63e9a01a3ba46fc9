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

package installation

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// oldest is the oldest version of Kubernetes on which the operator works: match
// conditions of webhooks, and sleep before the stop.
var oldest = utilversion.MustParseGeneric("1.30")

// mostSkew is how far clocks may be apart.
const mostSkew = 10 * time.Second

func kubernetesChecks(f *Facts) []Check {
	return []Check{reachable(f), supported(f), localClock(f)}
}

func reachable(f *Facts) Check {
	c := newCheck("kubernetes.reachable", "the API server answers")
	switch err := f.Version.Err; {
	case err == nil || apierrors.IsForbidden(err):
		return c.ok("")
	case apierrors.IsUnauthorized(err):
		return c.fail(err.Error(), "log in to the cluster again, or choose another context with --context", pageCheck)
	default:
		return c.fail(err.Error(), "see kubectl cluster-info, and choose another context with --context", pageCheck)
	}
}

func supported(f *Facts) Check {
	c := newCheck("kubernetes.version", fmt.Sprintf("Kubernetes is %s or later", oldest))
	if f.Version.Err != nil {
		return c.skip("the version is not known")
	}
	running, err := utilversion.ParseGeneric(f.Version.Value.GitVersion)
	switch {
	case err != nil:
		return c.skip("the API server calls its version %q", f.Version.Value.GitVersion)
	case running.LessThan(oldest):
		return c.fail("it is "+f.Version.Value.GitVersion+", where webhooks have no match conditions", "upgrade the cluster",
			"operations.md#install-in-a-minute")
	default:
		return c.ok("it is %s", f.Version.Value.GitVersion)
	}
}

func localClock(f *Facts) Check {
	c := newCheck("kubernetes.clock", "the clock of this machine agrees with the API server's")
	if f.ServerNow.IsZero() {
		return c.skip("the API server did not say what time it is")
	}
	skew := f.LocalNow.Sub(f.ServerNow)
	if skew.Abs() <= mostSkew {
		return c.ok("")
	}
	return c.warn("this machine is "+apart(skew), "set the clock of this machine, or of the API server; ages that the plugin tells are wrong by so much",
		pageCheck)
}

// apart says how a clock differs.
func apart(d time.Duration) string {
	if d < 0 {
		return fmt.Sprintf("%s behind", (-d).Round(time.Second))
	}
	return fmt.Sprintf("%s ahead", d.Round(time.Second))
}
