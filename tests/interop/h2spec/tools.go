//go:build tools

// The version of h2spec that test_h2spec.py builds.
package tools

import _ "github.com/summerwind/h2spec/cmd/h2spec"
